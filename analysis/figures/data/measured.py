"""How far the delayed update is from the fresh one, over training (the paper's figures 17, 18).

And how much a correction changes the gradient: where it hardly does, it cannot help.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.curves import COLUMNS, over_tokens
from analysis.figures.figure import Chart
from analysis.figures.scales import linear, of_positive
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
    measures = [
        over_tokens(diagnostics(trial["folder"], "all", name), trial)
        for _, trial in shown.iterrows()
    ]
    measured = [curve for curve in measures if not (curve[name] == 0).all()]  # nor if it is empty
    return pd.concat(measured, ignore_index=True) if measured else pd.DataFrame(columns=COLUMNS)


def charts(data: pd.DataFrame, name: str) -> list[Chart]:
    """As the validation curves are drawn."""
    return curves.of_means(data, axis(data, name))


def axis(data: pd.DataFrame, name: str) -> alt.Y:
    """What spans more than two decades is on a log axis, where a 0, that of updates without a
    delay, has no place: it is not drawn."""
    positive = data.loc[data[name] > 0, name]
    if positive.max() > 100 * positive.min():
        return of_positive(name, SHOWN[name], positive)
    return alt.Y(f"{name}:Q", title=SHOWN[name], scale=linear(data[name]))
