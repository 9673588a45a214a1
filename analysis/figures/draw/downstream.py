"""Dots with whiskers: one row per task, one dot per arm, around the line of sync."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from analysis.figures.figure import Chart
from analysis.figures.marks import hover, legend, panels_of, rounded
from analysis.figures.scales import linear
from analysis.figures.style import INK, SOFT, Style, arm_styles

CAPTION = (
    "dots: the arm's mean score minus that of sync; lines: 95 % intervals over n seeds and the "
    "task's questions; hollow: of two checkpoints, over questions alone",
)
TITLE = "difference to sync"
LINE, PAD = 13, 9
"""Pixels of the line of an arm, and between rows."""
HOVER = ["task", "series", "setting", "n", "questions", "mean", "low", "high"]


def rows(data: pd.DataFrame) -> list[Chart]:
    """One chart per panel of `data.downstream`; those of one measure have one axis."""
    styles = arm_styles(data)
    return [_chart(of, title, _axis(data, of), styles) for title, of in panels_of(data)]


def _axis(data: pd.DataFrame, of_panel: pd.DataFrame) -> alt.X:
    same = data[data["measure"] == of_panel["measure"].iloc[0]]
    values = pd.concat([same[name].astype(float) for name in ("mean", "low", "high")])
    scale = linear(pd.concat([values, pd.Series([0.0])]))
    return alt.X("mean:Q", title=TITLE, scale=scale, axis=alt.Axis(tickCount=5))


def _chart(
    data: pd.DataFrame, title: alt.TitleParams, x: alt.X, styles: Mapping[str, Style]
) -> Chart:
    names = [name for name in styles if name in {*data["series"]}]
    tasks = [*dict.fromkeys(data["task"])]
    axis = alt.Axis(labelLimit=200, domain=False, ticks=False, labelPadding=6)
    y = alt.Y("task:N", title=None, sort=tasks, axis=axis)
    offset = alt.YOffset("series:N", sort=names, scale=alt.Scale(domain=names))
    look = legend({name: name for name in names}, styles)
    words = [f"{of['mean']:+.3f}  n={of['n']} × {of['questions']:,}" for of in _records(data)]
    shown = rounded(data, HOVER).assign(words=words)
    base = alt.Chart(shown).encode(y=y, yOffset=offset, color=look.color)
    dots = base.encode(x=x, shape=look.shape, tooltip=hover(HOVER))
    ends = alt.X("low:Q", title=TITLE, scale=x["scale"], axis=x["axis"])
    layers = [
        alt.Chart(pd.DataFrame({"mean": [0.0]})).mark_rule(color=INK).encode(x=x),
        base.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=1.6)
        .encode(x=ends, x2=alt.X2("high:Q")),
        dots.transform_filter("datum.n > 1").mark_point(filled=True, size=55, opacity=1),
        dots.transform_filter("datum.n == 1").mark_point(filled=False, size=45, strokeWidth=1.6),
        alt.Chart(shown)
        .mark_text(align="left", dx=6, fontSize=9, color=SOFT)
        .encode(y=y, yOffset=offset, x=alt.XValue("width"), text=alt.Text("words:N")),
    ]
    return alt.layer(*layers, title=title, height=len(tasks) * (LINE * len(names) + PAD))


def _records(data: pd.DataFrame) -> list[dict[str, float]]:
    return [{str(name): value for name, value in row.items()} for row in data.to_dict("records")]
