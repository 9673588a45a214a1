"""The training loss where the delay is switched on: one line per β2."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures import curves
from analysis.figures.diagnostics import FROM_SWITCH
from analysis.figures.figure import Chart
from analysis.figures.scales import Axis, linear
from analysis.figures.style import Style, ordered_styles
from analysis.statistics.spikes import WINDOW
from analysis.table.names import signed

CAPTION = (
    f"training loss, running mean over {WINDOW} updates (the one shown and those before it)",
    "lines: mean over n seeds; faint: each seed; legend: height of the spike, 95 % interval",
)


def charts(data: pd.DataFrame) -> list[Chart]:
    """One panel per optimizer, one line per β2, of rows of `data.spike`."""
    scale = linear(data["running_mean"])
    y = alt.Y("running_mean:Q", title="training loss (nats per token)", scale=scale)
    return curves.of_means(data, Axis("running_mean", y), FROM_SWITCH, styles=_styles, label=_label)


def _styles(rows: pd.DataFrame) -> dict[str, Style]:
    return ordered_styles(list(dict.fromkeys(rows["series"])))


def _label(rows: pd.DataFrame) -> str:
    row = rows.iloc[0]
    interval = "" if pd.isna(row["low"]) else f" [{signed(row['low'])}, {signed(row['high'])}]"
    height = "" if pd.isna(row["mean_height"]) else f": {signed(row['mean_height'])}{interval}"
    return f"{row['series']}{height} (n={rows['seed'].nunique()})"
