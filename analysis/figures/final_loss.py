"""Final validation loss of every arm: a panel an optimizer, or a group of bars a value."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.figures.bars import OF_GAP
from analysis.figures.shown import shown_results
from analysis.figures.swept import results_along
from analysis.pairs import VARIANT

COLUMNS = ["panel", "series", "seed", "status", "final_val_loss", "trial_id"]
ROW = ["point", "arm", *VARIANT]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a trial that is shown, with the gap of its arm beside it (none for sync)."""
    shown = shown_results(trials, gaps)
    with_gap = shown.merge(gaps, on=ROW, how="left", suffixes=("", "_gap"))
    return with_gap[[*COLUMNS, *OF_GAP]]


def by_value(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """Likewise a row a trial of every point that differs in `key`, a column in words: `none` is the
    value of a key that is null."""
    shown = results_along(trials, [key], part_of=f"{key}.")
    table = shown.merge(gaps, on=ROW, how="left", suffixes=("", "_gap"))
    table[key] = table[key].map(_words)
    return table[["panel", key, *COLUMNS[1:], *OF_GAP]]


def _words(value: Any) -> str:
    if pd.isna(value):
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
