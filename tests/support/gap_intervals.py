"""A figure as one file, which tests register: every gap as a dot with its interval."""

import altair as alt
import pandas as pd

from analysis.figures.figure import Chart, Figure
from analysis.figures.marks import panels_of, rounded
from analysis.figures.rows import MEAN


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per gap: `panel` (the optimizer), `subtitle`, `arm`, and MEAN of the gap."""
    names = {"optimizer": "panel", "setting": "subtitle", "gap": "mean"}
    return gaps[gaps["n"] > 0].rename(columns=names)[["panel", "subtitle", "arm", *MEAN]]


def charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one panel per optimizer and setting, one dot with whiskers per arm."""
    x = alt.X("mean:Q", title="gap to sync (nats per token)")
    panels: list[Chart] = []
    for title, rows in panels_of(data):
        dots = alt.Chart(rounded(rows, ["arm", *MEAN])).encode(x=x, y="arm:N", tooltip=[*MEAN])
        whiskers = dots.transform_filter("datum.n > 1").mark_rule().encode(x="low:Q", x2="high:Q")
        panels.append(alt.layer(whiskers, dots.mark_point(filled=True), title=title))
    return panels


FIGURES = (
    Figure(
        name="gap_intervals",
        title="Gaps with their intervals",
        data=data,
        charts=charts,
        caption=("dots: means over n seeds; lines: 95 % intervals",),
    ),
)
