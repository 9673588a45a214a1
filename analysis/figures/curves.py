"""Validation loss over training: a panel an optimizer, a line an arm, its seeds behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import altair as alt
import pandas as pd

from analysis.figures.figure import Chart
from analysis.figures.marks import FAINT, Look, legend, renamed, rounded, titled
from analysis.figures.scales import PLAIN, linear
from analysis.figures.shown import shown_results
from analysis.figures.style import Styles, arm_styles
from analysis.store import validation_losses

COLUMNS = ["panel", "series", "seed", "status", "trial_id"]
TOKENS = alt.X(
    "tokens:Q",
    title="tokens",
    axis=alt.Axis(tickCount=5, labelExpr=PLAIN),
    scale=alt.Scale(zero=True),
)
CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)


STAGES = "pipeline.num_stages"


def counted(rows: pd.DataFrame) -> str:
    """The name of a series in the legend, with its number of seeds."""
    diverged = rows.loc[rows["status"] == "diverged", "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row an evaluation: `tokens` trained on and `val_loss`, of every trial that is shown."""
    shown = shown_results(trials, gaps)
    curves = [over_tokens(validation_losses(row["folder"]), row) for _, row in shown.iterrows()]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=COLUMNS)


def of_optimizers(
    trials: pd.DataFrame, gaps: pd.DataFrame, optimizers: Sequence[str]
) -> pd.DataFrame:
    """Likewise, of these optimizers alone."""
    return data(trials[trials["optimizer"].isin(optimizers)], gaps)


def over_tokens(curve: pd.DataFrame, trial: pd.Series) -> pd.DataFrame:
    """A trial's `update` and one more column, with `tokens` and what tells the trial apart."""
    tokens = (curve["update"] + 1) * trial["batch_size"] * trial["seq_len"]
    of_trial = {column: trial[column] for column in COLUMNS}
    *_, last = curve.columns
    return curve.assign(**of_trial, tokens=tokens)[[*COLUMNS, "update", "tokens", last]]


def by_stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Likewise, with a panel an optimizer and number of stages P, where an arm has several; what
    was run at one P alone, because it does not depend on it, is in each of them."""
    done = trials[trials["status"].isin(["completed", "diverged"])]
    stages = done[STAGES] if STAGES in done else pd.Series(dtype=int)
    per_arm = stages.groupby(done["arm"]).transform("nunique")
    at = product(sorted(done["optimizer"].unique()), sorted(stages[per_arm > 1].unique()))
    panels = []
    for optimizer, count in at:
        has_count = (stages == count) | (per_arm == 1)
        panel = data(done[has_count & (done["optimizer"] == optimizer)], gaps)
        panels.append(panel.assign(panel=renamed(panel["panel"], f", P={count}")))
    return pd.concat(panels, ignore_index=True) if panels else data(done[:0], gaps)


def charts(data: pd.DataFrame) -> list[Chart]:
    """Means end where the first of their seeds diverged; a cross is where a seed did."""
    words, scale = "validation loss (nats per token)", linear(data["val_loss"])
    return of_means(data, alt.Y("val_loss:Q", title=words, scale=scale))


def of_means(
    data: pd.DataFrame,
    y: alt.Y,
    x: alt.X = TOKENS,
    *,
    styles: Styles = arm_styles,
    label: Callable[[pd.DataFrame], str] = counted,
) -> list[Chart]:
    """A panel for each `panel` of rows like those of `over_tokens`, whose columns `x` and `y` show.

    `styles` of the series, `label` of the rows of one series in the legend.
    """
    looks = styles(data["series"])
    panels: list[Chart] = []
    for title, rows in data.groupby("panel", sort=False):
        labels = {str(series): label(of_series) for series, of_series in rows.groupby("series")}
        panels.append(_panel(rows, str(title), x, y, legend(labels, looks)))
    return panels


def _panel(rows: pd.DataFrame, title: str, x: alt.X, y: alt.Y, look: Look) -> Chart:
    across, up = (str(channel["shorthand"]).removesuffix(":Q") for channel in (x, y))
    known = rows.dropna(subset=up)
    hover = list(dict.fromkeys([*COLUMNS[1:], "update", across, up]))
    seeds = alt.Chart(rounded(known, hover)).encode(x=x, y=y, color=look.color, detail="trial_id:N")
    ends = known[known["status"] == "diverged"].groupby("trial_id").tail(1)
    crosses = alt.Chart(rounded(ends, ["series", across, up])).mark_text(text="×", fontSize=16)
    means = alt.Chart(_means(rows, across, up)).mark_line(strokeWidth=1.8)
    return alt.layer(
        seeds.mark_line(opacity=FAINT, strokeWidth=0.8),
        seeds.mark_point(opacity=0, size=40).encode(tooltip=hover),
        means.encode(x=x, y=y, color=look.color, strokeDash=look.dash),
        crosses.encode(x=x, y=y, color=look.color),
        title=titled(title),
    )


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
    return rounded(pd.concat(grids), ["series", across, up])
