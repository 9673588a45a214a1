"""Heat maps of the loss of every arm and of its gap, over two swept keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures.data.loss_and_gap import ACROSS, DOWN, MAP
from analysis.figures.data.panels import MEAN
from analysis.figures.draw.marks import counted, rounded, titled
from analysis.figures.figure import Chart

CAPTION = (
    "means over n seeds (hover: 95 % interval); frame: the lowest loss where nothing diverged",
    "× k/n: k of n diverged; nats per token; colours stop at four times the middle of the values",
)
CELL = 44  # pixels
LOSSES, GAPS = ("#f7fbff", "#6baed6"), ("#b2abd2", "#f7f7f7", "#fdb863")
"""Pale enough for black words."""
CUT = 4.0
FORMS = {"loss": ".3f", "gap": "+.3f"}


def charts(data: pd.DataFrame) -> list[Chart]:
    """One chart per map of `data.loss_and_gap`; all losses have one scale of colours, and all gaps
    another."""
    means = {name: data.loc[data["quantity"] == name, "mean"].dropna() for name in FORMS}
    scales = {"loss": _of_losses(means["loss"]), "gap": _of_gaps(means["gap"].abs())}
    panels: list[Chart] = []
    for (panel, subtitle, quantity, arm), rows in data.groupby(MAP, sort=False):
        title = titled(f"{arm} {quantity}: {panel}", str(subtitle), counted(rows["n"]))
        panels.append(_panel(rows, title, scales[str(quantity)]))
    return panels


def _of_losses(losses: pd.Series) -> alt.Scale:
    low = losses.min()
    high = low + min(losses.max() - low, CUT * (losses.median() - low) or losses.max() - low)
    return alt.Scale(domain=[low, high], range=LOSSES, clamp=True, nice=False, zero=False)


def _of_gaps(sizes: pd.Series) -> alt.Scale:
    most = min(sizes.max(), CUT * sizes.median()) if len(sizes) else 1.0
    return alt.Scale(domain=[-most, 0, most], range=GAPS, clamp=True, nice=False)


def _panel(rows: pd.DataFrame, title: alt.TitleParams, scale: alt.Scale) -> Chart:
    cells = rounded(rows, ["arm", "quantity", *MEAN, "best"]).assign(
        batch=rows[DOWN].map("{:g}".format),
        rate=rows[ACROSS].map("{:g}".format),
        words=[_words(row) for row in rows.to_dict("records")],
    )
    down = sorted(rows[DOWN].unique(), reverse=True)
    x = alt.X(
        "rate:O",
        title=ACROSS,
        sort=[f"{v:g}" for v in sorted(rows[ACROSS].unique())],
        axis=alt.Axis(labelAngle=0),
    )
    y = alt.Y("batch:O", title=DOWN, sort=[f"{value:g}" for value in down])
    chart = alt.Chart(cells).encode(x=x, y=y, tooltip=["arm", "quantity", "batch", "rate", *MEAN])
    color = alt.Color("mean:Q", scale=scale, legend=None)
    return alt.layer(
        chart.mark_rect().encode(color=color),
        chart.transform_filter("datum.best").mark_rect(
            fillOpacity=0, stroke="#000000", strokeWidth=2
        ),
        chart.mark_text(lineBreak="\n", lineHeight=10).encode(text="words:N"),
        title=title,
        height=CELL * len(down),
    )


def _words(row: Mapping[Any, Any]) -> str:
    lines = [f"{row['mean']:{FORMS[row['quantity']]}}"] if row["n"] else []
    lines += [f"× {row['diverged']}/{row['pairs']}"] if row["diverged"] else []
    return "\n".join(lines)
