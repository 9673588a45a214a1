"""Parts of charts: legends, titles, rounded data."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from pipegap.analysis.figures.rows import PANEL
from pipegap.analysis.figures.style import INK, SOFT, Style

DIGITS = 6
"""Significant digits of a number in a specification; the CSV has all."""
LEGEND, SYMBOL = 56, 6
"""Letters of a legend below a panel, and what a symbol takes of them."""
FAINT = 0.35
ROW_LINE, ROW_PAD = 13, 9
"""Pixels of the line of an arm in a row, and between rows."""
DODGE = 5.0
"""Pixels between series that have the same place on an axis."""


class SeriesLook(NamedTuple):
    """Encodings of the field `series`, in one legend: `shape` for points, `dash` for lines."""

    color: alt.Color
    dash: alt.StrokeDash
    shape: alt.Shape


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return these columns of `data` with DIGITS significant digits, for a specification."""
    kept = data[[*columns]].copy()
    for name in kept.select_dtypes(include=["float64", "Float64"]):
        kept[name] = [float(f"{value:.{DIGITS}g}") for value in kept[name]]
    return kept


def hover(columns: Iterable[str]) -> list[alt.Tooltip]:
    """Return what is told under the pointer: Altair is a hundred times slower with plain names."""
    return [alt.Tooltip(name) for name in columns]


def legend(
    labels: Mapping[str, str], styles: Mapping[str, Style], *, lines: bool = False
) -> SeriesLook:
    """Return colours, dashes and shapes of the series, with their legend.

    `labels` has the name of each series in the legend, `styles` its look. With `lines` the legend
    shows lines with their dashes, else the shapes of points.
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
    return SeriesLook(
        alt.Color("series:N", legend=words, scale=colors),
        alt.StrokeDash("series:N", legend=words, scale=dashes),
        alt.Shape("series:N", legend=words, scale=shapes),
    )


def dodged(names: Sequence[str]) -> dict[str, float]:
    """Return the pixels by which each of several series is moved, so that none hides another."""
    middle = (len(names) - 1) / 2
    return {name: DODGE * (place - middle) for place, name in enumerate(names)}


def panels_of(data: pd.DataFrame) -> Iterator[tuple[alt.TitleParams, pd.DataFrame]]:
    """Yield the title and the rows of each panel, in the order of the rows."""
    for (panel, subtitle), rows in data.groupby(PANEL, sort=False):
        yield titled(str(panel), str(subtitle)), rows


def titled(name: str, *subtitles: str) -> alt.TitleParams:
    """Return the title of a panel: its name, and below it in small letters the `subtitles`."""
    lines = [line for subtitle in subtitles for line in subtitle.splitlines()]
    return alt.TitleParams(name, subtitle=lines or alt.Undefined)


def counted(n: pd.Series) -> str:
    """Return in words how many seeds are behind each mean: `n=3`, `n=1 to 3`."""
    return f"n={n.min():g}" if n.min() == n.max() else f"n={n.min():g} to {n.max():g}"


def row_axis(letters: int = 200) -> alt.Axis:
    """Return the axis of rows with names, of which at most so many pixels are shown."""
    return alt.Axis(labelLimit=letters, domain=False, ticks=False, labelPadding=6)


def reference(value: float, x: alt.X) -> alt.Chart:
    """Return an upright line at a value of `mean`."""
    return alt.Chart(pd.DataFrame({"mean": [value]})).mark_rule(color=INK).encode(x=x)


def whiskers(rows: alt.Chart, low: alt.X, width: float = 1.6) -> alt.Chart:
    """Return a line from `low` to `high` for each row that has an interval."""
    known = rows.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=width)
    return known.encode(x=low, x2=alt.X2("high:Q"))


def words_beside(rows: pd.DataFrame, y: alt.Y, **channels: alt.YOffset) -> alt.Chart:
    """Return the column `words` of each row, to the right of the panel."""
    text = alt.Chart(rows).mark_text(align="left", dx=6, fontSize=10, color=SOFT)
    return text.encode(y=y, x=alt.XValue("width"), text=alt.Text("words:N"), **channels)
