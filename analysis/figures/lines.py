"""Lines against a swept number: means with their interval, every seed, and divergences."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import altair as alt
import pandas as pd

from pipegap.analysis.figures import by_number
from pipegap.analysis.figures.figure import Chart, Figure
from pipegap.analysis.figures.marks import (
    FAINT,
    SeriesLook,
    counted,
    dodged,
    hover,
    legend,
    panels_of,
    rounded,
)
from pipegap.analysis.figures.rows import OF_SEED, PANEL
from pipegap.analysis.figures.scales import MARGIN, far_apart, of_gaps, of_losses, of_numbers
from pipegap.analysis.figures.style import INK, Style, Styles, arm_styles
from pipegap.analysis.table import names

CAPTION = (
    "mean and its 95 % interval over n seeds; faint: each seed; lines stand side by side",
    "× k/n: k of n in which the arm diverged, not in the mean",
)
BAND = "band: the plain delay"
MOVED = alt.expr("datum.dodge")
MARK_HEIGHT = 0.06
"""Share of the axis that the mark of a diverged arm takes."""
LINE_HEIGHT = 12  # pixels of that mark
WITH_MEAN = ["low", "high", "n", "diverged", "pairs"]
"""What is shown beside a mean."""


def of_gap(data: pd.DataFrame, styles: Styles = arm_styles) -> list[Chart]:
    """Draw one chart per panel of rows of OF_GAPS; a series without values is a band."""
    return _charts(data, "gap", _gap_axis(data), styles(data))


def of_loss_and_gap(data: pd.DataFrame, styles: Styles = arm_styles) -> list[Chart]:
    """Draw two charts per panel of rows of `by_number.LOSSES`: the loss, and the gap beside it."""
    is_loss, looks = data["loss"].notna() | data["gap"].isna(), styles(data)
    values = data.loc[is_loss, ["loss", "low", "high", "mean"]].melt()["value"]
    y = of_losses(alt.Y("loss:Q"), values, _room(data[is_loss]))
    of_gap = _gap_axis(data.dropna(subset="gap"))
    charts: list[Chart] = []
    for _, rows in data.groupby(PANEL, sort=False):
        charts += _charts(rows[is_loss[rows.index]], "loss", y, looks)
        paired = rows.dropna(subset="gap")
        charts += _charts(paired.assign(panel=paired["panel"] + ", gap"), "gap", of_gap, looks)
    return charts


def _gap_axis(data: pd.DataFrame) -> alt.Y:
    values = pd.concat([data["gap"], data["low"], data["high"], data["mean"]])
    return of_gaps(alt.Y("gap:Q"), values, _room(data), symlog=far_apart(values))


def _room(data: pd.DataFrame) -> float:
    """Return the share of the axis above the values, for the marks of what diverged."""
    if not (data["diverged"] > 0).any():
        return MARGIN
    return MARGIN + MARK_HEIGHT * int(data.groupby(PANEL)["series"].nunique().max())


class _LineFrame(NamedTuple):
    """What the layers of a panel share; `y` shows the column `column`."""

    x: alt.X
    y: alt.Y
    column: str
    look: SeriesLook
    styles: Mapping[str, Style]
    shown: frozenset[str]

    def layer(self, rows: pd.DataFrame, held: str, *more: str) -> alt.Chart:
        """Return a chart of `rows` with their column `held` on the y axis."""
        kept = rounded(rows, list(dict.fromkeys(["series", "value", held, *more])))
        places = dodged([name for name in self.styles if name in self.shown])
        kept["dodge"] = [places[series] for series in kept["series"]]
        chart = alt.Chart(kept.rename(columns={held: self.column}))
        return chart.encode(y=self.y, color=self.look.color)


def _charts(data: pd.DataFrame, column: str, y: alt.Y, styles: Mapping[str, Style]) -> list[Chart]:
    panels: list[Chart] = []
    zero = alt.Chart(pd.DataFrame({column: [0.0]})).mark_rule(color=INK)
    for title, rows in panels_of(data):
        labels = {str(series): _label(of_series) for series, of_series in rows.groupby("series")}
        swept = rows.dropna(subset="value")
        x = of_numbers("value", names.key(rows["key"].iloc[0]), swept["value"])
        shown = frozenset(map(str, swept["series"])) or frozenset(labels)
        frame = _LineFrame(x, y, column, legend(labels, styles), styles, shown | {*labels})
        bands = _bands(frame, rows[rows["value"].isna()])
        marks = _diverged(frame, swept, [name for name in styles if name in labels])
        layers = [
            *([zero.encode(y=y)] if column == "gap" else []),
            *bands,
            *_means(frame, swept),
            _points(frame, swept).encode(x=x),
            *marks,
        ]
        panels.append(alt.layer(*layers, title=title))
    return panels


def _bands(frame: _LineFrame, rows: pd.DataFrame) -> list[alt.Chart]:
    """Draw bands across the panel, with their seeds on its right side."""
    means = rows.drop_duplicates("series")
    band = frame.layer(means.dropna(subset="low"), "low", "high")
    line = frame.layer(means.dropna(subset="mean"), "mean", *WITH_MEAN)
    told = hover(["series", frame.column, *WITH_MEAN])
    return [
        band.mark_rect(opacity=0.15).encode(y2=alt.Y2("high:Q")),
        line.mark_rule(strokeWidth=1.6).encode(strokeDash=frame.look.dash, tooltip=told),
        _points(frame, rows).encode(x=alt.XValue("width")),
    ]


def _means(frame: _LineFrame, rows: pd.DataFrame) -> list[alt.Chart]:
    means = rows.drop_duplicates(["series", "value"]).dropna(subset="mean")
    line = frame.layer(means, "mean", *WITH_MEAN).encode(x=frame.x)
    arms = frame.layer(means.dropna(subset="low"), "low", "high").encode(
        x=frame.x, y2=alt.Y2("high:Q")
    )
    told = hover(["series", "value", frame.column, *WITH_MEAN])
    return [
        arms.mark_rule(strokeWidth=1.2, xOffset=MOVED),
        line.mark_line(strokeWidth=1.4, opacity=0.8, xOffset=MOVED).encode(
            strokeDash=frame.look.dash
        ),
        line.mark_point(filled=True, size=45, opacity=1, xOffset=MOVED).encode(
            shape=frame.look.shape, tooltip=told
        ),
    ]


def _points(frame: _LineFrame, rows: pd.DataFrame) -> alt.Chart:
    told = hover(["series", "value", frame.column, *OF_SEED])
    points = frame.layer(rows.dropna(subset=frame.column), frame.column, *OF_SEED)
    marks = points.mark_point(filled=True, size=14, opacity=1, fillOpacity=FAINT, xOffset=MOVED)
    return marks.encode(shape=frame.look.shape, tooltip=told)


def _diverged(frame: _LineFrame, rows: pd.DataFrame, order: Sequence[str]) -> list[alt.Chart]:
    """Draw one line of text per series at the top of the panel: there is no gap to draw."""
    lost = rows[rows["diverged"] > 0].drop_duplicates(["series", "value"])
    words = [f"× {k}/{n}" for k, n in zip(lost["diverged"], lost["pairs"], strict=True)]
    marks = lost[["series", "value"]].assign(words=words)
    return [
        alt.Chart(of_series)
        .mark_text(baseline="top", y=2 + LINE_HEIGHT * order.index(str(series)))
        .encode(x=frame.x, text=alt.Text("words:N"), color=frame.look.color)
        for series, of_series in marks.groupby("series")
    ]


def _label(rows: pd.DataFrame) -> str:
    """Return the series with the pairs behind each mean, and for a band how many diverged."""
    reference = rows.iloc[0]
    is_band = rows["value"].isna().all() and reference["diverged"]
    note = f", × {reference['diverged']}/{reference['pairs']}" if is_band else ""
    return f"{reference['series']} ({counted(rows['n'])}{note})"


GAPS = Figure(
    name="gap_lines",
    title="Gap against what was swept",
    data=by_number.gaps_by_key,
    charts=of_gap,
    caption=CAPTION,
)
LOSSES = Figure(
    name="horizon",
    title="Final loss over horizons",
    data=partial(by_number.losses_along, key="tokens"),
    charts=of_loss_and_gap,
    caption=CAPTION,
    columns=2,
)
FIGURES = (
    GAPS,
    GAPS._replace(
        name="gap_by_coefficient",
        title="Gap against the coefficient of a correction",
        data=by_number.gaps_by_coefficient,
        caption=(*CAPTION, BAND),
    ),
    GAPS._replace(
        name="gap_by_delay", title="What a delay of τ updates costs", data=by_number.gaps_by_delay
    ),
)
