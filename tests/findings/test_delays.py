"""What the rule of findings/delays says of gaps that the test chooses."""

from pathlib import Path

import pandas as pd
import pytest

from analysis import load
from findings.code.calls import statements
from findings.code.cells import groups
from findings.code.published import View
from tests.support.synthetic_store import late, put

GAPS = {
    "adamw": {1: 0.01, 2: 0.02, 4: 0.1, 8: 0.1, 16: 0.12},
    "muon": {1: 0.005, 2: 0.01, 4: 0.02, 8: 0.04, 16: 0.08},
}
"""AdamW's gap doubles, grows faster than the delay, stays, and grows slower; Muon's doubles."""
LEFT = {1: 0.2, 2: 0.5, 4: 1.0, 8: 2.0, 16: 1.0}
"""The share of the gap that Error Feedback leaves."""
NOISES = (-0.0004, 0.0001, 0.0001, 0.0002)
FEEDBACK = {"_target_": "trainer.corrections.matched_error_feedback.MatchedErrorFeedback"}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for optimizer, gaps in GAPS.items():
        put(tmp_path, "sync", [2.0] * len(NOISES), optimizer=optimizer)
        for delay, gap in gaps.items():
            plain = [2.0 + gap + noise for noise in NOISES]
            late(tmp_path, delay, plain, optimizer=optimizer)
            fed = [2.0 + gap * LEFT[delay] + 3 * noise for noise in NOISES]
            late(tmp_path, delay, fed, optimizer=optimizer, correction=FEEDBACK)
    view = View(load(tmp_path))
    own = {optimizer: group for (optimizer,), group in groups(view).items()}
    monkeypatch.setattr(statements, "_of", lambda sweep: own)


def rows(table: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {first: rest for first, *rest in cells[2:]}


@pytest.mark.usefixtures("measured")
def test_a_gap_grows_faster_than_the_delay_or_slower_or_as_it_does() -> None:
    grown = {
        first: [cell.split("]")[1] for cell in rest]
        for first, rest in rows(statements.growth()).items()
    }
    assert grown["AdamW"] == ["", ", faster", ", slower", ", slower"]
    assert grown["Muon"] == ["", "", "", ""]
    assert statements.grown() == (
        "Of 8 steps 7 surely grow, 1 are open and 0 surely shrink. Of 4 steps up to a delay of 4, "
        "1 are surely faster than the delay and 0 slower; of 2 from 8 to 16, 0 and 1."
    )


@pytest.mark.usefixtures("measured")
def test_a_remedy_helps_or_harms() -> None:
    helped = rows(statements.helped("matched_ef"))
    assert helped["1"] == ["AdamW, Muon", "", ""]
    assert helped["4"] == ["", "", "AdamW, Muon"]
    assert helped["8"] == ["", "AdamW, Muon", ""]


@pytest.mark.usefixtures("measured")
def test_gaps_of_two_optimizers_are_compared_seed_by_seed() -> None:
    [(pair, cells)] = rows(statements.robust("adamw", "muon")).items()
    assert pair == "AdamW minus Muon"
    means = pd.Series([float(cell.split()[0]) for cell in cells])
    assert means.tolist() == [0.005, 0.01, 0.08, 0.06, 0.04]
    said = "Of 5 differences {} surely lie above 0, 0 are open and {} lie below."
    assert statements.more_fragile("adamw", "muon") == said.format(5, 0)
    assert statements.more_fragile("muon", "adamw") == said.format(0, 5)
