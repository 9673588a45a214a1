"""What is missing of a store in a sentence, with the hours that are known."""

from __future__ import annotations

import pandas as pd
import pytest

from analysis.report.missing import cost, missing, shown
from analysis.table.records import Record, RecordedTrial

WORDS, ARMS, SEEDS = ("sweep=main", "scale=tiny"), ("sync", "delay"), (0,)


def record(*seconds: float | None) -> Record:
    trials = {
        str(number): RecordedTrial("delay", 0, 500, 1e6, s) for number, s in enumerate(seconds)
    }
    ids = frozenset(trials)
    return Record("main", "tiny", "main-tiny", WORDS, "", ARMS, SEEDS, True, (), ids, trials)


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ((1800.0, 5400.0), "2 trials of 1 sweep are missing: 2.0 h one after the other, 1,000"),
        ((1800.0, None), ": 30 min one after the other without 1 of which it is not known, 1"),
        ((None, None), "2 trials of 1 sweep are missing: how long they take is not known, 1,000"),
    ],
)
def test_hours_are_those_of_the_trials_whose_time_is_known(
    seconds: tuple[float | None, ...], says: str
) -> None:
    nothing_yet = pd.DataFrame({"trial_id": [], "status": []})
    assert says in cost(missing(nothing_yet, [record(*seconds)], named=(), results="results"))


def test_a_sweep_that_was_never_run_has_no_price() -> None:
    nothing_yet = pd.DataFrame({"trial_id": [], "status": []})
    table = missing(nothing_yet, [], named=["main", "momentum"], results="my store")
    assert cost(table) == "2 sweeps were never run here (dry_run=true prices them)."
    assert table["seconds"].isna().all()
    assert shown(table)["time"].isna().all()
    assert table["command"].tolist() == [
        f"python -m sweeps sweep={name} scale=tiny 'results=my store'"
        for name in ("main", "momentum")
    ]
