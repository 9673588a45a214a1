"""The gap of every seed, with the mean of its arm beside it: what figures of gaps are made of."""

from __future__ import annotations

import pandas as pd

from analysis.figures.data.panels import MEAN, OF_SEED, PANEL, SERIES, with_variant
from analysis.statistics.pairs import SAME_ARM, pairs
from analysis.table import names
from trainer.base.status import Status

COLUMNS = [*PANEL, "optimizer", "key", "value", *SERIES, "gap", *OF_SEED, *MEAN]
"""A figure of gaps against `value` of `key`: one row per seed; a reference line has no value."""
IN_PANEL = ["series", "value", "seed"]
"""Order of the rows of a panel."""


def paired_seeds(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per trial whose sync partner completed: the columns of `pairs` and MEAN.

    `gap` is NaN if the trial diverged. `series` is the name of its arm, with stages and
    microbatches where the point has several of that arm. MEAN is that of the arm's row of `gaps`.
    """
    if trials.empty:
        return pd.DataFrame(columns=list(dict.fromkeys([*COLUMNS, *SAME_ARM, "base_arm"])))
    found = pairs(trials)
    found = found[found["status_sync"] == Status.COMPLETED].reset_index(drop=True)
    found["series"] = with_variant(found, found["arm"].map(names.arms(trials)))
    means = gaps.rename(columns={"gap": "mean"})[[*SAME_ARM, *MEAN]]
    return found.merge(means, on=SAME_ARM, how="left")
