"""What a delay and its correction cost in memory and speed (the paper's appendix F)."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from analysis.statistics.pairs import VARIANT, results
from trainer.base.status import Status

ARMS = ("sync", "delay", "delay_ef")
WHERE = ["runner", "device_name"]
SAME = ["optimizer", "point", "seed", *VARIANT, *WHERE]
EPOCH = pd.Timestamp(0, tz="UTC")
MEASURED = {"peak_memory_bytes": "memory", "tokens_per_second": "speed"}


def overhead(trials: pd.DataFrame, arms: Collection[str] = ARMS) -> pd.DataFrame:
    """One row per optimizer, runner, device and arm, with medians over its n completed trials.

    `arms`: those that have a row; sync must be among them.

    `memory` is in bytes, `speed` in tokens per second. Their ratios are to the sync trial of the
    same point, seed, stages, microbatches, runner and device. The speed of a trial counts only if
    no other trial of the table ran at its time on a device of the same name: `speed n` do.
    """
    done = results(trials)
    beside = done["trial_id"].map(_side_by_side(trials).set_axis(trials["trial_id"]))
    speed = done["tokens_per_second"].mask(beside.astype(bool))
    done = done.assign(tokens_per_second=speed)
    kept = done[(done["status"] == Status.COMPLETED) & done["arm"].isin([*arms])]
    kept = kept[[*SAME, "arm", *MEASURED]].rename(columns=MEASURED)
    kept = kept.astype(dict.fromkeys(MEASURED.values(), "float64"))
    sync = kept[kept["arm"] == "sync"].drop(columns="arm")
    paired = kept.merge(sync, on=SAME, how="left", suffixes=("", "_sync"))
    for name in MEASURED.values():
        paired[f"{name} ratio"] = paired[name] / paired[f"{name}_sync"]
    groups = paired.groupby(["optimizer", *WHERE, "arm"], dropna=False)
    shown = [name for measured in MEASURED.values() for name in (measured, f"{measured} ratio")]
    table = groups[shown].median()
    table["n"] = groups.size()
    table["speed n"] = groups["speed"].count()
    return table.reset_index()


def _side_by_side(trials: pd.DataFrame) -> pd.Series:
    """Whether another trial ran at the time of each, on a device of the same name.

    A trial is taken to have run for its wall seconds until it finished; of one that was interrupted
    this is not the very time. Where a time is not known, nothing is known of its neighbours: True.
    """
    ends = (trials["finished_at"] - EPOCH).dt.total_seconds()
    starts = ends - trials["wall_seconds"]
    beside = pd.Series(True, index=trials.index)
    known = starts.notna()
    for _, rows in trials[known].groupby("device_name", dropna=False):
        first, last = starts[rows.index].to_numpy(), ends[rows.index].to_numpy()
        order = np.argsort(first, kind="stable")
        ended = np.maximum.accumulate(last[order])
        before = np.concatenate([[-np.inf], ended[:-1]]) > first[order]
        after = np.concatenate([first[order][1:], [np.inf]]) < last[order]
        beside.loc[rows.index[order]] = before | after
    return beside
