"""Lines over training: one panel per optimizer, one line per arm, its seeds behind it."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt
import pandas as pd

from analysis.figures.data.panels import OF_SEED
from analysis.figures.draw.marks import FAINT, Look, legend, panels_of, rounded
from analysis.figures.draw.scales import PLAIN, Axis, linear
from analysis.figures.draw.style import Styles, arm_styles
from analysis.figures.figure import Chart
from trainer.base.status import Status

TOKENS = Axis(
    "tokens",
    alt.X(
        "tokens:Q",
        title="tokens",
        axis=alt.Axis(tickCount=5, labelExpr=PLAIN),
        scale=alt.Scale(zero=True),
    ),
)
CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)


def with_seeds(rows: pd.DataFrame) -> str:
    """The name of a series in the legend, with its number of seeds."""
    diverged = rows.loc[rows["status"] == Status.DIVERGED, "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"


def charts(data: pd.DataFrame) -> list[Chart]:
    """Means end where the first of their seeds diverged; a cross is where a seed did."""
    words, scale = "validation loss (nats per token)", linear(data["val_loss"])
    return of_means(data, Axis("val_loss", alt.Y("val_loss:Q", title=words, scale=scale)))


def of_means(
    data: pd.DataFrame,
    y: Axis[alt.Y],
    x: Axis[alt.X] = TOKENS,
    *,
    styles: Styles = arm_styles,
    label: Callable[[pd.DataFrame], str] = with_seeds,
) -> list[Chart]:
    """One chart per panel of rows like those of `data.validation_loss`, against `x` and `y`.

    `styles` of the series, `label` of the rows of one series in the legend.
    """
    looks = styles(data)
    panels: list[Chart] = []
    for title, rows in panels_of(data):
        labels = {str(series): label(of_series) for series, of_series in rows.groupby("series")}
        panels.append(_panel(rows, title, x, y, legend(labels, looks)))
    return panels


def _panel(
    rows: pd.DataFrame, title: alt.TitleParams, x: Axis[alt.X], y: Axis[alt.Y], look: Look
) -> Chart:
    known = rows.dropna(subset=y.column)
    hover = list(dict.fromkeys(["series", *OF_SEED, "update", x.column, y.column]))
    seeds = _marks(known, hover, x, y).encode(color=look.color, detail="trial_id:N")
    ends = known[known["status"] == Status.DIVERGED].groupby("trial_id").tail(1)
    shown = ["series", x.column, y.column]
    crosses = _marks(ends, shown, x, y).mark_text(text="×", fontSize=16)
    means = _marks(_means(rows, x.column, y.column), shown, x, y).mark_line(strokeWidth=1.8)
    return alt.layer(
        seeds.mark_line(opacity=FAINT, strokeWidth=0.8),
        seeds.mark_point(opacity=0, size=40).encode(tooltip=hover),
        means.encode(color=look.color, strokeDash=look.dash),
        crosses.encode(color=look.color),
        title=title,
    )


def _marks(rows: pd.DataFrame, columns: list[str], x: Axis[alt.X], y: Axis[alt.Y]) -> alt.Chart:
    return alt.Chart(rounded(rows, columns)).encode(x=x.channel, y=y.channel)


def _means(rows: pd.DataFrame, across: str, up: str) -> pd.DataFrame:
    """Over all seeds of a series, where each of them has a value."""
    grids = [
        of_series.pivot(index=across, columns="trial_id", values=up)
        .mean(axis=1, skipna=False)
        .dropna()
        .reset_index(name=up)
        .assign(series=series)
        for series, of_series in rows.groupby("series")
    ]
    return pd.concat(grids)
