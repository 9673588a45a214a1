"""What a delay and its correction cost in memory and speed (the paper's appendix F)."""

from __future__ import annotations

import pandas as pd

from analysis.statistics.pairs import VARIANT, results
from trainer.base.status import Status

ARMS = ("sync", "delay", "delay_ef")
WHERE = ["runner", "device_name"]
SAME = ["optimizer", "point", "seed", *VARIANT, *WHERE]
MEASURED = {"peak_memory_bytes": "memory", "tokens_per_second": "speed"}


def overhead(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per optimizer, runner, device and arm, with medians over its n completed trials.

    `memory` is in bytes, `speed` in tokens per second. Their ratios are to the sync trial of the
    same point, seed, stages, microbatches, runner and device.
    """
    done = results(trials)
    kept = done[(done["status"] == Status.COMPLETED) & done["arm"].isin(ARMS)]
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
    return table.reset_index()
