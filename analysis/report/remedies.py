"""What each remedy of a delay leaves of its cost, and what it costs itself."""

from __future__ import annotations

import pandas as pd

from analysis.statistics.overhead import overhead

COLUMNS = (
    *("optimizer", "setting", "delay", "arm", "n", "gap", "gap_low", "gap_high", "diverged"),
    *("removed", "removed_low", "removed_high", "tax", "tax_low", "tax_high"),
    *("memory ratio", "time ratio", "time n", "regime"),
)


def remedies(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """One row per optimizer, setting and arm that has a pair, for each delay from the smallest gap
    to the largest.

    Ratios of peak memory and time per token are to sync's, medians of the optimizer's trials with
    this arm; time counts where a trial had its machine for itself: `time n` did.
    """
    shown = gaps[gaps["pairs"] > 0].rename(columns={"low": "gap_low", "high": "gap_high"})
    cost = overhead(trials, arms=[*trials["arm"].unique()])
    # One arm of an optimizer usually runs on one device; of several the most frequent counts.
    cost = cost.sort_values("n", ascending=False).drop_duplicates(["optimizer", "arm"])
    cost = cost.assign(**{"time ratio": 1 / cost["speed ratio"], "time n": cost["speed n"]})
    kept = cost[["optimizer", "arm", "memory ratio", "time ratio", "time n"]]
    table = shown.merge(kept, on=["optimizer", "arm"], how="left")
    order = ["optimizer", "setting", "delay", "gap"]
    return table.sort_values(order, kind="stable", ignore_index=True)[[*COLUMNS]]
