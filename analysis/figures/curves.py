"""Validation loss over training: a panel an optimizer, a line an arm, its seeds behind it."""

from __future__ import annotations

import altair as alt
import pandas as pd

from analysis.figures.figure import Chart
from analysis.figures.marks import FAINT, legend, rounded, span, titled
from analysis.figures.shown import shown_results
from analysis.figures.style import arm_styles
from analysis.store import validation_losses

COLUMNS = ["panel", "series", "seed", "status", "trial_id"]
TOKENS = alt.X(
    "tokens:Q", title="tokens", axis=alt.Axis(format="~s", tickCount=5), scale=alt.Scale(zero=True)
)
CAPTION = ("lines: mean over n seeds, to where the first of them diverged (×); faint: each seed",)


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row an evaluation: `tokens` trained on and `val_loss`, of every trial that is shown."""
    shown = shown_results(trials, gaps)
    curves = [over_tokens(validation_losses(row["folder"]), row) for _, row in shown.iterrows()]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=COLUMNS)


def over_tokens(curve: pd.DataFrame, trial: pd.Series) -> pd.DataFrame:
    """A trial's `update` and one more column, with `tokens` and what tells the trial apart."""
    tokens = (curve["update"] + 1) * trial["batch_size"] * trial["seq_len"]
    of_trial = {column: trial[column] for column in COLUMNS}
    *_, last = curve.columns
    return curve.assign(**of_trial, tokens=tokens)[[*COLUMNS, "update", "tokens", last]]


def charts(data: pd.DataFrame) -> list[Chart]:
    """Means end where the first of their seeds diverged; a cross is where a seed did."""
    words, scale = "validation loss (nats per token)", span(data["val_loss"])
    return of_means(data, "val_loss", alt.Y("val_loss:Q", title=words, scale=scale))


def of_means(data: pd.DataFrame, column: str, y: alt.Y) -> list[Chart]:
    """A panel for each `panel` of rows like those of `over_tokens`; `y` encodes `column`."""
    return [
        _panel(rows, str(title), column, y) for title, rows in data.groupby("panel", sort=False)
    ]


def _panel(rows: pd.DataFrame, title: str, column: str, y: alt.Y) -> Chart:
    labels = {str(series): _label(of_series) for series, of_series in rows.groupby("series")}
    look = legend(labels, arm_styles(labels))
    seeds = alt.Chart(
        rounded(rows.dropna(subset=column), [*COLUMNS[1:], "update", "tokens", column])
    )
    seeds = seeds.encode(x=TOKENS, y=y, color=look["color"], detail="trial_id:N")
    hover = [*COLUMNS[1:], "update", column]
    ends = rows[rows["status"] == "diverged"].dropna(subset=column).groupby("trial_id").tail(1)
    crosses = alt.Chart(rounded(ends, ["series", "tokens", column]))
    return alt.layer(
        seeds.mark_line(opacity=FAINT, strokeWidth=0.8),
        seeds.mark_point(opacity=0, size=40).encode(tooltip=hover),
        alt.Chart(_means(rows, column))
        .mark_line(strokeWidth=1.8)
        .encode(x=TOKENS, y=y, color=look["color"], strokeDash=look["strokeDash"]),
        crosses.mark_text(text="×", fontSize=16).encode(x=TOKENS, y=y, color=look["color"]),
        title=titled(title),
    )


def _means(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Over all seeds of a series, where each of them has a value."""
    grids = [
        of_series.pivot(index="tokens", columns="trial_id", values=column)
        .mean(axis=1, skipna=False)
        .dropna()
        .reset_index(name=column)
        .assign(series=series)
        for series, of_series in rows.groupby("series")
    ]
    return rounded(pd.concat(grids), ["series", "tokens", column])


def _label(rows: pd.DataFrame) -> str:
    diverged = rows.loc[rows["status"] == "diverged", "seed"].nunique()
    note = f", {diverged} diverged" if diverged else ""
    return f"{rows['series'].iloc[0]} (n={rows['seed'].nunique()}{note})"
