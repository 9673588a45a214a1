"""Validation loss over training: a panel an optimizer, a line an arm, its seeds behind it."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.figures.figure import in_order, label_rows, panels, styles
from analysis.figures.shown import shown_results
from analysis.store import validation_losses

COLUMNS = ["panel", "series", "seed", "status", "trial_id"]


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


def draw(data: pd.DataFrame) -> Canvas:
    """Means end where the first of their seeds diverged; a cross is where a seed did."""
    return draw_means(data, "val_loss", "validation loss (nats per token)")


def draw_means(data: pd.DataFrame, column: str, title: str) -> Canvas:
    """`column` of rows of `over_tokens`, a panel an optimizer; `title` of the y axis."""
    canvas, grid = panels(list(data["panel"].unique()))
    for axes, (_, panel) in zip(grid, data.groupby("panel", sort=False), strict=True):
        _draw_panel(axes, panel, column)
    label_rows(grid, title)
    canvas.supxlabel("tokens (lines: mean over n seeds; faint: each seed)", fontsize=9)
    return canvas


def _draw_panel(axes: Axes, panel: pd.DataFrame, column: str) -> None:
    look = styles(panel["series"])
    for series in in_order(panel["series"]):
        style = look[series]
        rows = panel[panel["series"] == series]
        by_seed = rows.pivot(index="tokens", columns="seed", values=column)
        mean = by_seed.mean(axis=1, skipna=False).dropna()
        for seed in by_seed:
            axes.plot(by_seed[seed].dropna(), color=style["color"], alpha=0.3, linewidth=0.7)
        num_diverged = _mark_diverged(axes, rows, column, style["color"])
        note = f", {num_diverged} diverged" if num_diverged else ""
        axes.plot(
            mean,
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.6,
            label=f"{series} (n={by_seed.shape[1]}{note})",
        )
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(left=0)
    axes.legend(fontsize=8)


def _mark_diverged(axes: Axes, rows: pd.DataFrame, column: str, color: str) -> int:
    """A cross at the last finite value of each diverged trial; how many there are."""
    ends = rows[rows["status"] == "diverged"].dropna(subset=column).groupby("seed").last()
    axes.plot(ends["tokens"], ends[column], linestyle="", marker="x", color=color)
    return int(rows.loc[rows["status"] == "diverged", "seed"].nunique())
