"""Parts that charts are made of: legends that count, titles, rounded data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import pandas as pd

from analysis.figures.style import Style

DIGITS = 6
"""Significant ones of a number in a specification; the CSV has all."""
LONG_LABEL = 22
"""Letters from which on a legend has one column."""
SYMBOL_SIZES = {"stroke": 300, "square": 100}
FAINT = 0.35


class Look(NamedTuple):
    """Encodings of the field `series`, in one legend."""

    color: alt.Color
    dash: alt.StrokeDash


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of `data`, for a specification."""
    kept = data[[*columns]].copy()
    for name in kept.select_dtypes(include=["float64", "Float64"]):
        kept[name] = [float(f"{value:.{DIGITS}g}") for value in kept[name]]
    return kept


def legend(labels: Mapping[str, str], styles: Mapping[str, Style], symbol: str = "stroke") -> Look:
    """What a series looks like, and what the legend says of it.

    `labels` and `styles` of a series: what the legend calls it, and its look. `symbol`: what stands
    in the legend, of `SYMBOL_SIZES`.
    """
    shown = [name for name in styles if name in labels]
    columns = 1 if max(len(labels[name]) for name in shown) > LONG_LABEL else 2
    words = alt.Legend(
        columns=columns,
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        symbolType=symbol,
        symbolSize=SYMBOL_SIZES[symbol],
    )
    colors = alt.Scale(domain=shown, range=[styles[name].color for name in shown])
    dashes = alt.Scale(domain=shown, range=[[*styles[name].dash] for name in shown])
    return Look(
        alt.Color("series:N", legend=words, scale=colors),
        alt.StrokeDash("series:N", legend=words, scale=dashes),
    )


def titled(title: str) -> alt.TitleParams:
    """The first line is the panel's name, the others say what of it is shown."""
    name, *more = title.split("\n")
    return alt.TitleParams(name, subtitle=more or alt.Undefined)


def renamed(panels: pd.Series, more: str) -> pd.Series:
    """Titles of panels with `more` behind the name."""
    return panels.map(
        lambda title: title.replace("\n", f"{more}\n", 1) if "\n" in title else title + more
    )


def counted(n: pd.Series) -> str:
    """Of how many seeds means are."""
    return f"n={n.min()}" if n.min() == n.max() else f"n={n.min()} to {n.max()}"
