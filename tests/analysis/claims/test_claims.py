"""Each claim of the paper is judged by its rule: reproduced, contradicted, not enough data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from synthetic_store import config, result, write

from analysis import gaps, load
from analysis.claims import CLAIMS, Outcome, Verdict, judged, not_run

YES, NO, OPEN = Outcome.REPRODUCED, Outcome.CONTRADICTED, Outcome.UNDECIDED
SYNC = (2.0, 2.1, 1.9)
SPREAD = (0.0, 0.002, -0.002)
"""Of a gap over the seeds: its interval is ± 0.005."""
WIDE = (0.0, 0.4, -0.4)
BY_NAME = {claim.name: claim for claim in CLAIMS}
CORRECTIONS = {
    "ef": "trainer.corrections.error_feedback.ErrorFeedback",
    "taylor": "trainer.corrections.taylor.Taylor",
    "ef_gradient": "trainer.corrections.error_feedback_gradient.GradientErrorFeedback",
}


class Group(NamedTuple):
    """The trials of an arm beside sync: `gap` None diverges; `pipeline`, `keys` change configs."""

    gap: float | None
    optimizer: str = "adamw"
    correction: str = ""
    coefficient: float = 1.0
    pipeline: Mapping[str, Any] = {}
    keys: Mapping[str, Any] = {}
    spread: Sequence[float] = SPREAD
    spike: float = 0.0


def store(folder: Path, groups: Iterable[Group], num_updates: int = 400) -> None:
    for group in groups:
        for seed, (sync, noise) in enumerate(zip(SYNC, group.spread, strict=False)):
            base = config("sync", optimizer=group.optimizer, seed=seed)
            late = config("delay", optimizer=group.optimizer, seed=seed)
            for settings in (base, late):
                for key, value in group.keys.items():
                    (settings if key in settings else settings["optimizer"])[key] = value
                settings["num_updates"] = num_updates
            late["pipeline"] |= group.pipeline
            if group.correction:
                late["correction"] = {
                    "_target_": CORRECTIONS[group.correction],
                    "coefficient": group.coefficient,
                }
            tokens = {"tokens": 2048 * base["num_updates"]}
            write(folder, base, result(base, sync, **tokens))
            loss = None if group.gap is None else sync + group.gap + noise
            trial = write(folder, late, result(late, loss, **tokens))
            _write_losses(trial, late, group.spike + noise)


def _write_losses(trial: Path, settings: Mapping[str, Any], spike: float) -> None:
    start = settings["pipeline"].get("synchronous_start")
    if start:
        losses = [2.0 + spike * (update >= start) for update in range(60)]
        rows = [{"update": t, "train_loss": loss} for t, loss in enumerate(losses)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (trial / "metrics.jsonl").write_text(text)


def verdict(name: str, folder: Path) -> Verdict:
    trials = load(folder)
    return judged(BY_NAME[name], trials, gaps(trials))


def of(gap_by_optimizer: Mapping[str, float], **changes: Any) -> list[Group]:
    return [Group(gap, optimizer, **changes) for optimizer, gap in gap_by_optimizer.items()]


def feedback(plain: float, left: float, **changes: Any) -> list[Group]:
    return [Group(plain, **changes), Group(left, correction="ef", **changes)]


def coefficients(correction: str, gap_by_value: Mapping[float, float | None]) -> list[Group]:
    arms = [Group(gap, "muon", correction, value) for value, gap in gap_by_value.items()]
    return [Group(0.4, "muon"), *arms]


def swept(key: str, gap_by_value: Mapping[Any, float], **changes: Any) -> list[Group]:
    return [Group(gap, keys={key: value}, **changes) for value, gap in gap_by_value.items()]


def depths(late: Mapping[int, float], stays: Mapping[int, float], **changes: Any) -> list[Group]:
    original = {"_target_": "trainer.schedules.pipedream"}
    return [
        *(Group(g, pipeline={**original, "num_stages": p}, **changes) for p, g in late.items()),
        *(Group(g, pipeline={"num_stages": p}, **changes) for p, g in stays.items()),
    ]


def starts(spike_by_decay: Mapping[float, float], **changes: Any) -> list[Group]:
    start = {"synchronous_start": 20}
    return [
        Group(0.1, pipeline=start, keys={"variance_decay": decay}, spike=spike, **changes)
        for decay, spike in spike_by_decay.items()
    ]


ROBUST = {"muon": 0.1, "normuon": 0.1, "soap": 0.1, "adan": 0.1}
COOLED = {"synchronous_cooldown": 0.1}
CASES: dict[str, dict[Outcome, list[Group]]] = {
    "delay_costs": {YES: [Group(0.1)], NO: [Group(-0.1)], OPEN: [Group(0.1, spread=WIDE)]},
    "adamw_over_muon": {
        YES: of({"adamw": 0.3, "muon": 0.1}),
        NO: of({"adamw": 0.1, "muon": 0.3}),
        OPEN: of({"adamw": 0.3}),
    },
    "order": {
        YES: of({"adamw": 0.3, "mars": 0.4, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, **ROBUST, "soap": 0.5}),
        OPEN: of({"adamw": 0.3, **ROBUST}),
    },
    "lion_between": {
        YES: of({"adamw": 0.3, "mars": 0.4, "lion": 0.2, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, "lion": 0.05, **ROBUST}),
        OPEN: of({"adamw": 0.3, "mars": 0.4, "lion": 0.1, **ROBUST}),
    },
    "ef_helps": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.5),
        OPEN: feedback(0.01, 0.009, spread=WIDE),
    },
    "ef_most": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.3),
        OPEN: feedback(0.4, 0.1, spread=(0.0, 0.05, -0.05)),
    },
    "momentum": {
        YES: swept("momentum", {0.8: 0.4, 0.9: 0.3, 0.99: 0.1}),
        NO: swept("momentum", {0.8: 0.1, 0.9: 0.3, 0.99: 0.4}),
        OPEN: swept("momentum", {0.8: 0.4, 0.99: 0.4}),
    },
    "depth": {
        YES: depths({2: 0.1, 8: 0.5}, {2: 0.1, 8: 0.101}),
        NO: depths({2: 0.1, 8: 0.5}, {2: 0.1, 8: 0.2}),
        OPEN: depths({2: 0.1, 8: 0.1}, {2: 0.1, 8: 0.1}),
    },
    "best_over_grid": {
        YES: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon"),
        NO: swept("lr", {0.1: 0.1, 0.2: 0.5}, optimizer="muon"),
        OPEN: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon", spread=WIDE),
    },
    "large_batches": {
        YES: swept("batch_size", {8: 0.1, 16: 0.5}),
        NO: swept("batch_size", {8: 0.5, 16: 0.1}),
        OPEN: swept("batch_size", {8: 0.1}),
    },
    "horizon": {
        YES: feedback(0.1, 0.0, keys={"num_updates": 800}),
        NO: feedback(0.1, 0.05, keys={"num_updates": 800}),
        OPEN: feedback(0.0, 0.0, keys={"num_updates": 800}),
    },
    "coefficient": {
        YES: coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.098}),
        NO: coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.05}),
        OPEN: coefficients("ef", {0.5: 0.2, 1.0: 0.4}),
    },
    "taylor": {
        YES: coefficients("taylor", {100.0: 0.4, 1000.0: 0.5}),
        NO: coefficients("taylor", {100.0: 0.39, 1000.0: 0.2}),
        OPEN: coefficients("taylor", {100.0: 0.4, 1000.0: 0.4}),
    },
    "gradient_feedback": {
        YES: coefficients("ef_gradient", {1.0: None}),
        NO: coefficients("ef_gradient", {1.0: 0.2}),
        OPEN: [Group(0.4)],
    },
    "spike": {
        YES: starts({0.99: 1.0}),
        NO: starts({0.99: -1.0}, spread=SPREAD),
        OPEN: starts({0.99: 0.1}, spread=WIDE),
    },
    "spike_by_decay": {
        YES: starts({0.9: 0.5, 0.999: 1.0}),
        NO: starts({0.9: 1.0, 0.999: 1.001}),
        OPEN: starts({0.9: 1.0, 0.999: 1.5}, spread=WIDE),
    },
    "cooldown": {
        YES: [Group(0.4), Group(0.1, pipeline=COOLED)],
        NO: [Group(0.1), Group(0.4, pipeline=COOLED)],
        OPEN: [Group(0.1, pipeline=COOLED)],
    },
}


def test_every_claim_is_tested() -> None:
    assert set(CASES) == set(BY_NAME)
    assert all(set(by_outcome) == {*Outcome} for by_outcome in CASES.values())


@pytest.mark.parametrize("outcome", [*Outcome])
@pytest.mark.parametrize("name", CASES)
def test_known_answers(name: str, outcome: Outcome, tmp_path: Path) -> None:
    store(tmp_path, CASES[name][outcome])
    found = verdict(name, tmp_path)
    assert found.outcome == outcome, found
    if outcome != OPEN:
        assert all(part.numbers for part in found.parts)
    else:
        assert any(part.why for part in found.parts)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_claim_is_decided_by_one_seed_or_short_trials(name: str, tmp_path: Path) -> None:
    for folder, groups, updates in (
        ("seed", [group._replace(spread=[0.0]) for group in CASES[name][YES]], 400),
        ("short", CASES[name][YES], 99),
    ):
        store(tmp_path / folder, groups, updates)
        if folder == "short":
            for path in (tmp_path / folder).rglob("result.json"):
                path.write_text(json.dumps({**json.loads(path.read_text()), "num_updates": 99}))
        assert verdict(name, tmp_path / folder).outcome == OPEN


@pytest.mark.parametrize("name", BY_NAME)
def test_trials_that_say_nothing_of_a_claim(name: str, tmp_path: Path) -> None:
    """A sweep of which only sync is done, or nothing at all."""
    settings = config("sync")
    write(tmp_path, settings, result(settings, 2.0))
    found = verdict(name, tmp_path)
    assert found.outcome == OPEN
    assert all(part.why for part in found.parts)
    trials = load(tmp_path)[:0]
    assert judged(BY_NAME[name], trials, gaps(trials)).outcome == OPEN


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    store(tmp_path, of({"adamw": 0.3, **ROBUST}))
    whys = {part.what: part.why for part in verdict("order", tmp_path).parts}
    assert whys["muon less than mars"] == "mars is missing"
    assert whys["muon less than adamw"] == ""


def test_an_arm_that_diverged_everywhere_lost_and_one_that_did_in_part_decides_nothing(
    tmp_path: Path,
) -> None:
    store(tmp_path / "all", [Group(None), Group(0.1, "muon")])
    found = verdict("adamw_over_muon", tmp_path / "all")
    assert found.outcome == YES
    assert "adamw diverged at 3 of 3" in [str(number) for number in found.parts[0].numbers]
    store(tmp_path / "part", [Group(0.3), Group(0.1, "muon")])
    path = next(
        p.parent
        for p in (tmp_path / "part").rglob("config.json")
        if "2bw" in p.read_text() and "adamw" in p.read_text()
    )
    settings = json.loads((path / "config.json").read_text())
    lost = {"trial_id": path.name, **result(settings, None)}
    (path / "result.json").write_text(json.dumps(lost))
    found = verdict("adamw_over_muon", tmp_path / "part")
    assert found.outcome == OPEN
    assert "adamw: 1 of 3 diverged" in found.parts[0].why


def test_a_claim_that_was_never_run_says_how() -> None:
    claim = BY_NAME["momentum"]
    found = not_run(claim, "tiny")
    assert found.outcome == OPEN
    assert "python -m sweeps sweep=momentum scale=tiny" in found.parts[0].why
