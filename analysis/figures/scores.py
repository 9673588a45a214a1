"""Downstream scores of each arm minus those of sync (table 4), one row per task."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.marks import (
    ROW_LINE,
    ROW_PAD,
    hover,
    legend,
    panels_of,
    reference,
    rounded,
    row_axis,
    whiskers,
    words_beside,
)
from pipegap.analysis.figures.rows import PANEL, lines, with_variant
from pipegap.analysis.figures.scales import linear
from pipegap.analysis.figures.style import Style, arm_styles
from pipegap.analysis.statistics.downstream import downstream
from pipegap.analysis.table import names
from pipegap.analysis.table.answers import ACCURACY, BITS, title

SHOWN = {
    ACCURACY: "accuracy: more is better",
    BITS: "bits per byte of right answers: less is better",
}
"""Measures, and what a panel says of them."""
COLUMNS = [
    *(*PANEL, "measure", "task", "questions", "optimizer", "series", "arm", "setting"),
    *("n", "mean", "low", "high", "of"),
]
TITLE = "difference to sync"
HOVER = ["task", "series", "setting", "n", "questions", "mean", "low", "high"]


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per optimizer, point, arm and task, for accuracy and for bits.

    `mean`, `low` and `high` are the difference to sync over `n` seeds and all `questions`, and its
    interval. With one seed (`of` is two checkpoints) the interval is over questions alone.
    """
    return of_scores(downstream(trials), names.arms(trials))


def of_scores(scores: pd.DataFrame, arms: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of `data` from a table of `downstream`; `arms` has their names."""
    rows = scores[scores["measure"].isin([*SHOWN])].reset_index(drop=True)
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    table = rows.assign(
        panel=rows["optimizer"].map(names.optimizer),
        subtitle=[
            lines([str(SHOWN[measure]), str(setting)])
            for measure, setting in zip(rows["measure"], rows["setting"], strict=True)
        ],
        series=with_variant(rows, rows["arm"].map(arms)),
        mean=rows["difference"],
        task=rows["task"].map(title),
    )
    return table[COLUMNS].sort_values(["panel", "measure"], kind="stable", ignore_index=True)


def charts(data: pd.DataFrame) -> list[Chart]:
    """Draw one chart per panel; the charts of one measure have one axis."""
    styles = arm_styles(data)
    return [_chart(rows, head, _axis(data, rows), styles) for head, rows in panels_of(data)]


def _axis(data: pd.DataFrame, rows: pd.DataFrame) -> alt.X:
    same = data[data["measure"] == rows["measure"].iloc[0]]
    values = pd.concat([same[name].astype(float) for name in ("mean", "low", "high")])
    scale = linear(pd.concat([values, pd.Series([0.0])]))
    return alt.X("mean:Q", title=TITLE, scale=scale, axis=alt.Axis(tickCount=5))


def _chart(
    rows: pd.DataFrame, head: alt.TitleParams, x: alt.X, styles: Mapping[str, Style]
) -> Chart:
    series = [name for name in styles if name in {*rows["series"]}]
    tasks = [*dict.fromkeys(rows["task"])]
    y = alt.Y("task:N", title=None, sort=tasks, axis=row_axis())
    offset = alt.YOffset("series:N", sort=series, scale=alt.Scale(domain=series))
    look = legend({name: name for name in series}, styles)
    words = [
        f"{row['mean']:+.3f}  n={row['n']} × {row['questions']:,}"
        for row in rows.to_dict("records")
    ]
    shown = rounded(rows, HOVER).assign(words=words)
    base = alt.Chart(shown).encode(y=y, yOffset=offset, color=look.color)
    dots = base.encode(x=x, shape=look.shape, tooltip=hover(HOVER))
    layers = [
        reference(0.0, x),
        whiskers(base, alt.X("low:Q", title=TITLE, scale=x["scale"], axis=x["axis"])),
        dots.transform_filter("datum.n > 1").mark_point(filled=True, size=55, opacity=1),
        dots.transform_filter("datum.n == 1").mark_point(filled=False, size=45, strokeWidth=1.6),
        words_beside(shown, y, yOffset=offset),
    ]
    return alt.layer(*layers, title=head, height=len(tasks) * (ROW_LINE * len(series) + ROW_PAD))


FIGURES = (
    Figure(
        name="downstream",
        title="Downstream scores beside those of sync",
        data=data,
        charts=charts,
        caption=(
            "dots: the arm's mean score minus that of sync; lines: 95 % intervals over n seeds and "
            "the task's questions; hollow: of two checkpoints, over questions alone",
        ),
        source="table 4 (10B MoE)",
        columns=2,
    ),
)
