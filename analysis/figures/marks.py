"""Parts of charts: legends, titles, rounded data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from analysis.figures.data.panels import PANEL
from analysis.figures.style import Style

GAP_TITLE = "gap to sync (nats per token)"
LOSS_TITLE = "final validation loss (nats per token)"
DIGITS = 6
"""Significant digits of a number in a specification; the CSV has all."""
LEGEND, SYMBOL = 56, 6
"""Letters of a legend below a panel, and what a symbol takes of them."""
FAINT = 0.35
DODGE = 5.0
"""Pixels between series that have the same place on an axis."""


class Look(NamedTuple):
    """Encodings of the field `series`, in one legend: `shape` for points, `dash` for lines."""

    color: alt.Color
    dash: alt.StrokeDash
    shape: alt.Shape


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of `data`, for a specification."""
    kept = data[[*columns]].copy()
    for name in kept.select_dtypes(include=["float64", "Float64"]):
        kept[name] = [float(f"{value:.{DIGITS}g}") for value in kept[name]]
    return kept


def hover(columns: Iterable[str]) -> list[alt.Tooltip]:
    """What is told under the pointer. Altair takes a hundred times as long to read plain names."""
    return [alt.Tooltip(name) for name in columns]


def legend(labels: Mapping[str, str], styles: Mapping[str, Style], *, lines: bool = False) -> Look:
    """Colours, dashes and shapes of the series, and their legend.

    `labels` and `styles`: for each series its name in the legend, and its look. `lines`: the legend
    shows lines with their dashes; else the shapes of points.
    """
    shown = [name for name in styles if name in labels]
    longest = max(len(labels[name]) for name in shown)
    words = alt.Legend(
        columns=max(1, LEGEND // (longest + SYMBOL)),
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        **(
            {"symbolType": "stroke", "symbolSize": 300}
            if lines
            else {"symbolSize": 70, "symbolStrokeWidth": 0}
        ),
    )
    colors = alt.Scale(domain=shown, range=[styles[name].color for name in shown])
    dashes = alt.Scale(domain=shown, range=[[*styles[name].dash] for name in shown])
    shapes = alt.Scale(domain=shown, range=[styles[name].shape for name in shown])
    return Look(
        alt.Color("series:N", legend=words, scale=colors),
        alt.StrokeDash("series:N", legend=words, scale=dashes),
        alt.Shape("series:N", legend=words, scale=shapes),
    )


def dodged(names: Sequence[str]) -> dict[str, float]:
    """Pixels by which each of several series is moved, so that none hides another."""
    middle = (len(names) - 1) / 2
    return {name: DODGE * (place - middle) for place, name in enumerate(names)}


def panels_of(data: pd.DataFrame) -> Iterator[tuple[alt.TitleParams, pd.DataFrame]]:
    """The title and the rows of each panel, in the order of the rows."""
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        yield titled(str(panel), str(subtitle)), rows


def titled(name: str, *subtitles: str) -> alt.TitleParams:
    """The name of a panel, and below it in small letters the lines of `subtitles`."""
    lines = [line for subtitle in subtitles for line in subtitle.splitlines()]
    return alt.TitleParams(name, subtitle=lines or alt.Undefined)


def counted(n: pd.Series) -> str:
    """How many seeds are behind each of some means, in words."""
    return f"n={n.min():g}" if n.min() == n.max() else f"n={n.min():g} to {n.max():g}"
