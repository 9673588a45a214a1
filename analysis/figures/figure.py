"""What a figure is, and how it is saved: one Vega-Lite specification for files and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import altair as alt
import pandas as pd
import vl_convert

from analysis.figures.draw.style import CONFIG

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
Spec: TypeAlias = dict[str, Any]

COLUMNS = 3
"""Panels beside each other in a file."""
SCALE = 2
"""Pixels of a PNG per pixel of the specification."""


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
    chart per panel, all with one y axis.

    `name`: of its files. `source`: where the paper has it, empty if it does not. `sweeps`: names of
    the sweeps whose trials it shows; empty: any trials. `caption`: how to read it, in lines.
    `rows`: what a row of its data is. `together`: whether a figure of any trials shows those of all
    sweeps of a scale in one; else it is drawn for each sweep.
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


def save(figure: Figure, data: pd.DataFrame, out: Path) -> None:
    """Writes NAME.svg, NAME.png and NAME.csv; the same data give the same bytes."""
    data.to_csv(out / f"{figure.name}.csv", index=False)
    spec = whole(figure, data)
    (out / f"{figure.name}.svg").write_text(vl_convert.vegalite_to_svg(spec))
    (out / f"{figure.name}.png").write_bytes(vl_convert.vegalite_to_png(spec, scale=SCALE))


def whole(figure: Figure, data: pd.DataFrame) -> Spec:
    """One specification: the panels beside and below each other, under title and caption."""
    charts = figure.charts(data)
    title = alt.TitleParams(figure.title, subtitle=[*figure.caption], fontSize=14, offset=12)
    grid = alt.concat(*charts, columns=min(figure.columns, len(charts)), title=title)
    # Each panel has its own legend, which counts that panel's trials.
    return _spec(
        grid.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    )


def panels(figure: Figure, data: pd.DataFrame) -> list[Spec]:
    """One specification per panel, as wide as the element of the page that holds it."""
    return [_spec(chart.properties(width="container")) for chart in figure.charts(data)]


def _spec(chart: Chart | alt.ConcatChart) -> Spec:
    # Altair's limit of rows is meant for notebooks.
    with alt.data_transformers.enable("default", max_rows=None):
        spec: Spec = chart.properties(config=CONFIG).to_dict()
    return spec
