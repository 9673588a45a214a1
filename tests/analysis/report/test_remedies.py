"""The table of remedies: what is left of each delay's cost, and what the remedy costs itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import gaps, load
from analysis.report.remedies import remedies
from tests.support.synthetic_store import NONE, SYNC, TWO_BUFFERED, config, result, write

MATCHED = {
    "_target_": "trainer.corrections.matched_error_feedback.MatchedErrorFeedback",
    "coefficient": 1.0,
    "lag": 1,
}
THREE = {
    **{"_target_": "trainer.schedules.constant_delay", "num_stages": 1, "num_microbatches": 1},
    **{"synchronous_start": 0, "synchronous_cooldown": 0, "delay": 3},
}


def put(store: Path, pipeline: object, correction: object, loss: float, **measured: float) -> None:
    """Two seeds of an arm, whose number of the delay is that of its schedule."""
    for seed in (0, 1):
        settings = config(seed=seed)
        settings |= {"pipeline": pipeline, "correction": correction}
        delay = {str(SYNC): 0, str(TWO_BUFFERED): 1, str(THREE): 3}[str(pipeline)]
        outcome = result(settings, loss + 0.001 * seed, delays=[delay], wall_seconds=0.0)
        write(store, settings, outcome | measured)


def test_a_row_has_gap_and_cost_of_its_arm(tmp_path: Path) -> None:
    """By delay, then by gap; a remedy twice as slow takes twice the time of sync."""
    put(tmp_path, SYNC, NONE, 2.0)
    put(tmp_path, THREE, MATCHED, 2.1, peak_memory_bytes=3 * 10**9, tokens_per_second=10_000.0)
    put(tmp_path, THREE, NONE, 2.5)
    put(tmp_path, TWO_BUFFERED, NONE, 2.2)
    trials = load(tmp_path)
    table = remedies(trials, gaps(trials), "tiny")
    assert table["arm"].tolist() == ["delay", "constant_delay(3)_matched_ef", "constant_delay(3)"]
    assert table["delay"].tolist() == [1, 3, 3]
    assert table["gap"].tolist() == pytest.approx([0.2, 0.1, 0.5])
    assert table["memory ratio"].tolist() == pytest.approx([1, 3, 1])
    assert table["time ratio"].tolist() == pytest.approx([1, 2, 1])
    assert table.loc[1, "removed"] == pytest.approx(0.8)
