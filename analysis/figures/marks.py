"""Parts that charts are made of: legends that count, titles, rounded data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from analysis.figures.style import Style

DIGITS = 6
"""Significant ones of a number in a specification; the CSV has all."""
LONG_LABEL = 22
"""Letters from which on a legend has one column."""
FAINT = 0.35


def rounded(data: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of `data`, for a specification."""
    kept = data[[*columns]].copy()
    for name in kept.select_dtypes("floating"):
        kept[name] = [float(f"{value:.{DIGITS}g}") for value in kept[name]]
    return kept


def legend(labels: Mapping[str, str], styles: Mapping[str, Style]) -> dict[str, alt.SchemaBase]:
    """Encodings of colour, dash and shape by the field `series`, all in one legend.

    `labels` and `styles` of a series: what the legend calls it, and its look.
    """
    shown = [name for name in styles if name in labels]
    columns = 1 if max(len(labels[name]) for name in shown) > LONG_LABEL else 2
    # A point in the legend would hide the dash of its line.
    words = alt.Legend(
        columns=columns,
        labelExpr=f"{json.dumps(labels)}[datum.value]",
        symbolType="stroke",
        symbolFillColor="transparent",
    )
    shown_in = {"color": words, "strokeDash": words, "shape": None}
    looks = {
        "color": (alt.Color, [styles[name].color for name in shown]),
        "strokeDash": (alt.StrokeDash, [[*styles[name].dash] for name in shown]),
        "shape": (alt.Shape, [styles[name].shape for name in shown]),
    }
    return {
        name: channel(
            "series:N", legend=shown_in[name], scale=alt.Scale(domain=shown, range=values)
        )
        for name, (channel, values) in looks.items()
    }


def titled(title: str) -> alt.TitleParams:
    """The first line is the panel's name, the others say what of it is shown."""
    name, *more = title.split("\n")
    return alt.TitleParams(name, subtitle=more or alt.Undefined)
