"""Final validation loss of every arm: one panel per optimizer, or one group of bars per value."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.figures.data.panels import OF_SEED, PANEL, SERIES
from analysis.figures.data.shown import shown_results
from analysis.figures.data.swept import results_along
from analysis.statistics.pairs import SAME_ARM

GAP = ["n", "gap", "low", "high", "diverged", "pairs"]
"""Columns of the arm's row of gaps; missing of sync."""
OF_TRIAL = [*SERIES, "final_val_loss", *OF_SEED]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """One row per trial that is shown, with the GAP of its arm beside it."""
    shown = shown_results(trials, gaps)
    with_gap = shown.merge(gaps, on=SAME_ARM, how="left", suffixes=("", "_gap"))
    return with_gap[[*PANEL, *OF_TRIAL, *GAP]]


def by_value(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """One row per trial of every point that differs in `key`, with the GAP of its arm beside it.

    `key` is a column of words: `none` is the value of a key that is null.
    """
    shown = results_along(trials, [key], part_of=key)
    table = shown.merge(gaps, on=SAME_ARM, how="left", suffixes=("", "_gap"))
    table[key] = table[key].map(_words)
    return table[[*PANEL, key, *OF_TRIAL, *GAP]]


def _words(value: Any) -> str:
    if pd.isna(value):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
