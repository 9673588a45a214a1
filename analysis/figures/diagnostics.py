"""How far the delayed update is from the fresh one, over training (the paper's figures 17, 18)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.curves import COLUMNS, draw_means, over_tokens
from analysis.figures.shown import shown_results
from analysis.store import diagnostics

SHOWN = {
    "update_cosine": "cosine of delayed and fresh update",
    "update_error": "relative error of the delayed update",
}
"""Diagnostics of the whole model that have a figure, and their axis."""


def data(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row a measurement: `tokens` trained on and `name`; empty if no trial measured it."""
    shown = shown_results(trials, gaps)
    curves = [
        over_tokens(diagnostics(trial["folder"], "all", name), trial)
        for _, trial in shown.iterrows()
    ]
    measured = [curve for curve in curves if not curve.empty]
    return pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=COLUMNS)


def draw(data: pd.DataFrame, name: str) -> Canvas:
    """As the validation curves are drawn."""
    return draw_means(data, name, SHOWN[name])
