"""Diagnostics over training, and zoomed in on the switch to a delay."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.data.measured import AFTER, BEFORE, MEASURED
from analysis.figures.data.panels import PANEL
from analysis.figures.figure import Chart
from analysis.figures.scales import Axis, linear, of_positive
from analysis.figures.style import arm_styles

FROM_SWITCH = Axis(
    "from_switch",
    alt.X("from_switch:Q", title="updates from the switch", scale=alt.Scale(nice=False)),
)


def charts(data: pd.DataFrame, name: str) -> list[Chart]:
    """As the validation curves are drawn."""
    return curves.of_means(data, _axis(data, name))


def around_switch(data: pd.DataFrame, name: str) -> list[Chart]:
    """Each optimizer over the whole run, and beside that around the switch."""
    y, looks = _axis(data, name), arm_styles(data)
    shown: list[Chart] = []
    for _, rows in data.groupby(PANEL, sort=False):
        near = rows[rows["share"].between(-BEFORE, AFTER)]
        near = near.assign(panel=near["panel"] + ", at the switch")
        shown += curves.of_means(rows, y, styles=lambda _: looks)
        shown += curves.of_means(near, y, FROM_SWITCH, styles=lambda _: looks)
    return shown


def _axis(data: pd.DataFrame, name: str) -> Axis[alt.Y]:
    """A log axis for more than two decades. It has no place for 0, which updates without a delay
    measure: these are not drawn."""
    positive = data.loc[data[name] > 0, name]
    if positive.max() > 100 * positive.min():
        return Axis(name, of_positive(name, MEASURED[name], positive))
    return Axis(name, alt.Y(f"{name}:Q", title=MEASURED[name], scale=linear(data[name])))
