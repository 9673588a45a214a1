"""What a figure is, and how it is saved: one Vega-Lite specification for files and for a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import altair as alt
import pandas as pd
import vl_convert

from analysis.figures.style import CONFIG

Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart
Spec: TypeAlias = dict[str, Any]

COLUMNS = 3
"""Panels beside each other in a file."""
SCALE = 2
"""Pixels of a PNG a pixel of the specification."""


class Figure(NamedTuple):
    """`data(trials, gaps)` is what is shown (empty: no figure), `charts(data)` how: a panel each,
    all with one y axis.

    `name`: of its files. `source`: where the paper has it, empty if it does not. `sweeps`: names of
    the sweeps whose trials it shows; empty: any trials. `caption`: how to read it, in lines.
    """

    name: str
    title: str
    data: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
    charts: Callable[[pd.DataFrame], Sequence[Chart]]
    caption: tuple[str, ...] = ()
    source: str = ""
    sweeps: tuple[str, ...] = ()
    columns: int = COLUMNS


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
    # Each panel has a legend of its own: it counts that panel's trials.
    return _spec(
        grid.resolve_scale(color="independent", strokeDash="independent", shape="independent")
    )


def panels(figure: Figure, data: pd.DataFrame) -> list[Spec]:
    """A specification a panel, as wide as the element of the page that holds it."""
    return [_spec(chart.properties(width="container")) for chart in figure.charts(data)]


def _spec(chart: Chart | alt.ConcatChart) -> Spec:
    # Without the limit that is meant for notebooks.
    with alt.data_transformers.enable("default", max_rows=None):
        spec: Spec = chart.properties(config=CONFIG).to_dict()
    return spec
