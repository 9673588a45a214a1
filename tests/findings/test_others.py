"""What the rule of findings/others says of statements whose truth the test chooses."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import load
from findings.code.calls import statements
from findings.code.cells import TrialGroup, groups
from findings.code.published import View
from tests.support.synthetic_store import late, put, write_arms

GAPS = {"muon": {2: 0.1, 8: 0.4, 16: 1.0}, "adamh": {2: 0.3, 8: 1.0, 16: 2.0}}
SHARES = {"muon": {2: 0.6, 8: 0.4, 16: 0.2}, "adamh": {2: 0.5, 8: 0.1, 16: 0.1}}
NOISE = (-0.001, 0.0005, 0.0005)
NOISES = pd.Series([-0.001, 0.0, 0.0, 0.001])
CORRECTIONS = "trainer.corrections."
PREDICTION = {"_target_": f"{CORRECTIONS}weight_prediction.WeightPrediction", "horizon": 1.0}
TAYLOR = {"_target_": f"{CORRECTIONS}taylor.Taylor", "coefficient": 1.0, "decay": 0.0}
Numbers = dict[str, dict[int, float]]


def outcomes(store: Path, gaps: Numbers, shares: Numbers, monkeypatch: pytest.MonkeyPatch) -> str:
    """The table of statements on trials with these gaps and shares of weight prediction."""
    for optimizer, of_delays in gaps.items():
        put(store, "sync", [2.0] * len(NOISE), optimizer=optimizer)
        for delay, gap in of_delays.items():
            predicted = gap * (1 - shares[optimizer][delay])
            for correction, of_arm in (({}, gap), (PREDICTION, predicted), (TAYLOR, gap)):
                losses = [2.0 + of_arm + noise * (1 + bool(correction)) for noise in NOISE]
                late(store, delay, losses, optimizer=optimizer, correction=correction)
    view = View(load(store))
    own = {optimizer: group for (optimizer,), group in groups(view).items()}
    monkeypatch.setattr(statements, "_of", lambda sweep: own)
    return statements.statements()


def verdicts(table: str) -> dict[str, str]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: row[-1].strip("*") for row in rows}


def test_trials_like_marins_agree_with_every_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = verdicts(outcomes(tmp_path, GAPS, SHARES, monkeypatch))
    assert {*said.values()} == {"agrees"}
    assert len(said) == 19
    assert statements.agreement() == "Of 19 statements: 19 agree, 0 disagree, 0 open."


def test_a_reversed_order_and_a_remedy_that_harms_disagree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaps = GAPS | {"muon": {2: 0.4, 8: 0.1, 16: 1.0}}
    shares = SHARES | {"adamh": {2: 0.5, 8: -0.1, 16: 0.1}}
    said = verdicts(outcomes(tmp_path, gaps, shares, monkeypatch))
    assert {text for text, outcome in said.items() if outcome == "disagrees"} == {
        "Muon: a delay of 8 costs more than 2",
        "a delay of 2 costs AdamH more than Muon",
        "AdamH: weight prediction helps at a delay of 8",
    }


@pytest.mark.parametrize(
    ("fed", "expected"),
    [
        (2.001, ["agrees", "agrees", "agrees"]),
        (2.05, ["agrees", "agrees", "disagrees"]),
        (2.15, ["agrees", "disagrees", "disagrees"]),
    ],
)
def test_the_papers_three_losses_beside_trials(
    fed: float, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_arms(
        tmp_path,
        {
            "sync": [2.0] * len(NOISE),
            "delay": [2.1 + noise for noise in NOISE],
            "delay_ef": [fed - noise for noise in NOISE],
        },
    )
    monkeypatch.setattr(
        statements, "read", lambda table: load(tmp_path).assign(model=statements.HYBRID)
    )
    assert [*verdicts(statements.triple("a/table")).values()] == expected


def test_the_numbers_of_others_are_consistent() -> None:
    """Of each optimizer and delay: the share that was reported is that of the two gaps."""
    rows = statements._reported()
    plain = rows[rows["removed"].isna()].set_index(["optimizer", "delay"])["gap"]
    for row in rows.dropna(subset="removed").to_dict("records"):
        share = 1 - row["gap"] / plain[row["optimizer"], row["delay"]]
        assert row["removed"] == pytest.approx(share, abs=0.0051)


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((0.0, 0.01), ["agrees", "agrees", "disagrees"]),
        ((0.1, 0.031), ["disagrees", "open", "agrees"]),
        ((-0.029, -0.1), ["open", "disagrees", "agrees"]),
        ((0.02, 0.02), ["agrees", "agrees", "open"]),
    ],
)
def test_paci_beside_a_flush_by_its_rule(
    gaps: tuple[float, float], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = {
        ("adamw", num): TrialGroup({}, pd.DataFrame({"sync": 0.0, "paci": gap + noise}), {})
        for num, gap, noise in zip((8, 16), gaps, (NOISES, NOISES[::-1]), strict=True)
    }
    assert [row.outcome.strip("*") for row in statements._flush(of)] == expected
