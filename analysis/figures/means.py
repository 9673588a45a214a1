"""Means over seeds and the seeds behind them, over tokens or the updates since a switch."""

from collections.abc import Callable, Sequence

import altair as alt
import pandas as pd

from pipegap.analysis.figures.figure import Chart
from pipegap.analysis.figures.marks import FAINT, SeriesLook, hover, legend, panels_of, rounded
from pipegap.analysis.figures.rows import OF_SEED, PANEL, SERIES
from pipegap.analysis.figures.scales import Axis, of_tokens
from pipegap.analysis.figures.style import Styles, arm_styles
from pipegap.trainer.base.status import Status

COLUMNS = [*PANEL, *SERIES, *OF_SEED]
CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)


def below_each_other(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the curves of several trials in one table, whose index level `trial` counts them."""
    return pd.concat(curves, keys=range(len(curves)), names=["trial", None])


def over_tokens(rows: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    """Return COLUMNS, `update`, `tokens`, and the curves' own column.

    `rows` are those of `below_each_other`, with `update` and one more column: the curve `trial` is
    that of this row of `shown`.
    """
    of_row, rows = rows.index.get_level_values("trial"), rows.reset_index(drop=True)
    trials = shown[[*COLUMNS, "batch_size", "seq_len"]].iloc[of_row].reset_index(drop=True)
    tokens = (rows["update"] + 1) * trials["batch_size"] * trials["seq_len"]
    *_, last = rows.columns
    return trials[COLUMNS].assign(update=rows["update"], tokens=tokens, **{last: rows[last]})


def with_seeds(rows: pd.DataFrame) -> str:
    """Return the name of a series in the legend, with its number of seeds."""
    diverged = rows.loc[rows["status"] == Status.DIVERGED, "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"


def of_means(
    data: pd.DataFrame,
    y: Axis[alt.Y],
    x: Axis[alt.X] | None = None,
    *,
    styles: Styles = arm_styles,
    label: Callable[[pd.DataFrame], str] = with_seeds,
) -> list[Chart]:
    """Draw one chart per panel of rows of `over_tokens`, against `x` (else tokens) and `y`.

    `styles` returns the looks of the series, `label` the words of one series in the legend.
    """
    looks = styles(data)
    across = x or of_tokens(data["tokens"])
    panels: list[Chart] = []
    for title, rows in panels_of(data):
        labels = {str(series): label(of_series) for series, of_series in rows.groupby("series")}
        panels.append(_panel(rows, title, across, y, legend(labels, looks, lines=True)))
    return panels


def _panel(
    rows: pd.DataFrame, title: alt.TitleParams, x: Axis[alt.X], y: Axis[alt.Y], look: SeriesLook
) -> alt.LayerChart:
    known = rows.dropna(subset=y.column)
    told = list(dict.fromkeys(["series", *OF_SEED, "update", x.column, y.column]))
    seeds = marks(known, told, x, y).encode(color=look.color, detail=alt.Detail("trial_id:N"))
    ends = known[known["status"] == Status.DIVERGED].groupby("trial_id").tail(1)
    shown = ["series", x.column, y.column]
    means = marks(_means(rows, x.column, y.column), shown, x, y).mark_line(strokeWidth=1.8)
    layers = [
        seeds.mark_line(strokeOpacity=FAINT, strokeWidth=0.8),
        seeds.mark_point(opacity=0, size=40).encode(tooltip=hover(told)),
        means.encode(color=look.color, strokeDash=look.dash),
    ]
    if len(ends):
        crosses = marks(ends, shown, x, y).mark_text(text="×", fontSize=16)
        layers.append(crosses.encode(color=look.color))
    panel = alt.layer(*layers, title=title)
    assert isinstance(panel, alt.LayerChart)
    return panel


def marks(
    rows: pd.DataFrame, columns: list[str], x: Axis[alt.X], y: Axis[alt.Y] | None
) -> alt.Chart:
    """Return a chart of these columns, without a mark, against `x` and `y`."""
    chart = alt.Chart(rounded(rows, columns)).encode(x=x.channel)
    return chart.encode(y=y.channel) if y else chart


def _means(rows: pd.DataFrame, across: str, up: str) -> pd.DataFrame:
    """Return the mean over all seeds of a series, where each of them has a value."""
    grids = [
        of_series.pivot(index=across, columns="trial_id", values=up)
        .mean(axis=1, skipna=False)
        .dropna()
        .reset_index(name=up)
        .assign(series=series)
        for series, of_series in rows.groupby("series")
    ]
    return pd.concat(grids)
