"""How far the delayed update is from the fresh one, over training (the paper's figures 17, 18).

And how much a correction changes the gradient: where it hardly does, it cannot help.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure as Canvas

from analysis.figures.curves import COLUMNS, draw_means, over_tokens
from analysis.figures.shown import shown_results
from analysis.store import diagnostics

SHOWN = {
    "update_cosine": "cosine of delayed and fresh update",
    "update_error": "relative error of the delayed update",
    "gradient_change": "relative change of the gradient",
}
"""Diagnostics of the whole model that have a figure, and their axis."""


def data(trials: pd.DataFrame, gaps: pd.DataFrame, name: str) -> pd.DataFrame:
    """A row a measurement: `tokens` trained on and `name`; empty if no trial measured it.

    Trials that only ever measured 0 have nothing to show: without a delay, or without a correction
    of the gradient.
    """
    shown = shown_results(trials, gaps)
    curves = [
        over_tokens(diagnostics(trial["folder"], "all", name), trial)
        for _, trial in shown.iterrows()
    ]
    measured = [curve for curve in curves if not (curve[name] == 0).all()]  # nor if it is empty
    return pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=COLUMNS)


def draw(data: pd.DataFrame, name: str) -> Canvas:
    """As the validation curves are drawn; what spans more than two decades on a log axis, where a
    0, that of updates without a delay, has no place.
    """
    positive = data[data[name] > 0]
    if positive[name].max() <= 100 * positive[name].min():
        return draw_means(data, name, SHOWN[name])
    canvas = draw_means(positive, name, SHOWN[name])
    for axes in canvas.axes:
        axes.set_yscale("log")
    return canvas
