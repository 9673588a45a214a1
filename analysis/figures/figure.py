"""What a figure is: one Vega-Lite specification for files and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from textwrap import wrap
from typing import Any, NamedTuple, TypeAlias

import altair as alt
import pandas as pd

from analysis.figures.describe import described
from analysis.figures.style import CONFIG

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
Spec: TypeAlias = dict[str, Any]

COLUMNS = 3
"""Panels beside each other in a file."""
LINE = 72
"""Letters of a caption above a panel."""
OF_WHOLE = ("$schema", "config", "datasets")
"""Parts of a specification that panels beside each other share."""


class Rows(Enum):
    """What the rows of a figure's data are. The tests hold a figure to it."""

    SEEDS = ("trial_id",)
    """One trial, or one moment of it: each trial must be in the picture."""
    INTERVALS = ("n", "mean", "low", "high")
    """A mean over n seeds with its interval (NaN for n < 2): its ends must be in the picture."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that such data must have."""
        return self.value


class Figure(NamedTuple):
    """`data(trials, gaps)` returns a table (empty: no figure), and `charts(data)` draws it: one
    chart per panel. All panels that show one quantity have one axis for it.

    `name`: of its files. `source`: where the paper has it, empty if it does not. `sweeps`: names of
    the sweeps whose trials it shows; empty: any trials. `caption`: how to read it, in lines.
    `rows`: what a row of its data is. `together`: whether a figure of any trials shows those of all
    sweeps of a scale in one, their longer runs too; else it is drawn for each sweep.
    """

    name: str
    title: str
    data: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
    charts: Callable[[pd.DataFrame], Sequence[Chart]]
    caption: tuple[str, ...] = ()
    source: str = ""
    sweeps: tuple[str, ...] = ()
    columns: int = COLUMNS
    rows: Rows = Rows.SEEDS
    together: bool = False


class Plot(NamedTuple):
    """A figure of `data`, with the specification of each of its panels."""

    figure: Figure
    data: pd.DataFrame
    specs: Sequence[Spec]


def plot(figure: Figure, data: pd.DataFrame) -> Plot:
    """Draws it: once for its files and the page, since altair is slow."""
    # Altair's limit of rows is meant for notebooks. Tests hold every figure to Vega-Lite's schema.
    with alt.data_transformers.enable("default", max_rows=None):
        specs = [chart.to_dict(validate=False) for chart in figure.charts(data)]
    return Plot(figure, data, [{**spec, "config": CONFIG} for spec in specs])


def whole(drawn: Plot) -> Spec:
    """One specification: the panels beside and below each other, under title and caption."""
    columns = min(drawn.figure.columns, len(drawn.specs))
    # A figure of one column is as wide as two panels: its rows have long names.
    line = LINE * (2 if drawn.figure.columns == 1 else columns)
    return beside(drawn, columns, line=line)


def panels(drawn: Plot) -> list[Spec]:
    """One specification per panel, as wide as the element of the page that holds it."""
    words = described(drawn.figure.title, drawn.figure.caption, drawn.data)
    return [{**panel, "width": "container", "description": words} for panel in drawn.specs]


def beside(drawn: Plot, columns: int, *, line: int) -> Spec:
    """One specification of the panels, that many beside each other, with a caption in lines of at
    most `line` letters. It is put together here, since `alt.concat` copies every chart."""
    figure, data, specs = drawn
    title = {
        "text": wrap(figure.title, int(line * 0.7)),
        "subtitle": [part for words in figure.caption for part in wrap(words, line)],
        "fontSize": 14,
        "offset": 12,
    }
    return {
        "$schema": specs[0]["$schema"],
        "config": CONFIG,
        "title": title,
        "description": described(figure.title, figure.caption, data),
        "columns": columns,
        "concat": [
            {name: part for name, part in panel.items() if name not in OF_WHOLE} for panel in specs
        ],
        # Each panel has its own legend, which counts that panel's trials.
        "resolve": {"scale": dict.fromkeys(("color", "strokeDash", "shape"), "independent")},
        "datasets": {name: rows for panel in specs for name, rows in panel["datasets"].items()},
    }
