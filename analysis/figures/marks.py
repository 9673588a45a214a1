"""Parts that charts are made of: scales that hide nothing, legends that count, rounded data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from analysis.figures.style import Style

DIGITS = 6
"""Significant ones of a number in a specification; the CSV has all."""
MARGIN = 0.05
"""Share of the span of the values that an axis goes on beyond them."""
LONG_LABEL = 22
"""Letters from which on a legend has one column."""
FAINT = 0.35


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of `data`, for a specification."""
    kept = data[[*columns]].copy()
    for name in kept.select_dtypes("floating"):
        kept[name] = [float(f"{value:.{DIGITS}g}") for value in kept[name]]
    return kept


def span(*values: pd.Series, above: float = MARGIN, below: float = MARGIN) -> alt.Scale:
    """A linear scale that holds all of `values`, and beyond them shares of their span."""
    known = pd.concat([series.astype(float) for series in values]).dropna()
    if known.empty:
        return alt.Scale(domain=[0, 1], nice=False, zero=False)
    low, high = float(known.min()), float(known.max())
    width = (high - low) or abs(high) or 1.0
    return alt.Scale(domain=[low - below * width, high + above * width], nice=False, zero=False)


def legend(labels: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, alt.SchemaBase]:
    """Encodings of colour, dash and shape by the field `series`, all in one legend.

    `labels` and `styles` of a series: what the legend calls it, and its look.
    """
    shown = [name for name in styles if name in labels]
    columns = 1 if max(len(labels[name]) for name in shown) > LONG_LABEL else 2
    words = alt.Legend(columns=columns, labelExpr=f"{json.dumps(labels)}[datum.value]")
    looks = {
        "color": (alt.Color, [styles[name].color for name in shown]),
        "strokeDash": (alt.StrokeDash, [[*styles[name].dash] for name in shown]),
        "shape": (alt.Shape, [styles[name].shape for name in shown]),
    }
    return {
        name: channel("series:N", legend=words, scale=alt.Scale(domain=shown, range=values))
        for name, (channel, values) in looks.items()
    }


def titled(title: str) -> alt.TitleParams:
    """The first line is the panel's name, the others say what of it is shown."""
    name, *more = title.split("\n")
    return alt.TitleParams(name, subtitle=more or alt.Undefined)
