"""A forecast: the law as a line in its band, hatched where no rung is, and the rungs as points."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures.data.forecast import LAW, MEASURED, RUNG, TARGET
from analysis.figures.figure import Chart
from analysis.figures.marks import GAP_TITLE, hover, legend, panels_of, rounded
from analysis.figures.scales import of_gaps, of_numbers
from analysis.figures.style import INK, SOFT, ordered_styles

CAPTION = (
    "points: mean gaps of the rungs with 95 % intervals; line and band: the law with the 95 % "
    "interval of a mean of as many seeds as are forecast",
    "hatched: extrapolated, no rung is as short or as long; diamond: the forecast",
)
MEASURED_CAPTION = "open circle: what was measured after the forecast"


def charts(data: pd.DataFrame) -> list[Chart]:
    """One chart per optimizer and arm of rows of `data.forecast`."""
    y = of_gaps(alt.Y("mean:Q"), GAP_TITLE, pd.concat([data["mean"], data["low"], data["high"]]))
    return [_panel(of_panel, title, y) for title, of_panel in panels_of(data)]


def _panel(data: pd.DataFrame, title: alt.TitleParams, y: alt.Y) -> Chart:
    columns = ["series", "updates", "n", "mean", "low", "high"]
    law, rungs, target, measured = (
        rounded(data[data["kind"] == kind], columns) for kind in (LAW, RUNG, TARGET, MEASURED)
    )
    beyond = rounded(data[(data["kind"] == LAW) & data["is_beyond"]], columns)
    x = of_numbers("updates", "updates T", pd.concat([rungs["updates"], target["updates"]]))
    low = alt.Y("low:Q", title=y["title"], scale=y["scale"])
    names = list(dict.fromkeys(rungs["series"]))
    look = legend({name: name for name in names}, ordered_styles(names))
    band = alt.Chart(law).encode(x=x, y=low, y2=alt.Y2("high:Q"))
    points = alt.Chart(rungs).encode(x=x, color=look.color)
    at_target, after = (alt.Chart(rows).encode(x=x) for rows in (target, measured))
    return alt.layer(
        band.mark_area(opacity=0.12, color=INK),
        # Vega-Lite has no pattern to fill with: upright lines hatch the band.
        alt.Chart(beyond)
        .mark_rule(color=SOFT, strokeWidth=0.8)
        .encode(x=x, y=low, y2=alt.Y2("high:Q")),
        alt.Chart(law).mark_line(color=INK).encode(x=x, y=y),
        points.mark_rule(strokeWidth=1.4).encode(y=low, y2=alt.Y2("high:Q")),
        points.mark_point(filled=True, size=50, opacity=1).encode(
            y=y, shape=look.shape, tooltip=hover(columns)
        ),
        at_target.mark_rule(color=INK, strokeWidth=1.6).encode(y=low, y2=alt.Y2("high:Q")),
        at_target.mark_point(shape="diamond", filled=True, size=90, color=INK, opacity=1).encode(
            y=y, tooltip=hover(columns)
        ),
        after.mark_rule(color=INK, strokeDash=[2, 2]).encode(y=low, y2=alt.Y2("high:Q")),
        after.mark_point(size=70, color=INK, opacity=1).encode(y=y, tooltip=hover(columns)),
        title=title,
    )
