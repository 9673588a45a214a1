"""Draws gaps against a number: means with their interval, every seed, and what diverged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.figures.figure import in_order, panels, styles

CAPTION = (
    "mean gap and its 95 % interval over n seeds; faint: each seed; "
    "× with k/n: k of n pairs in which the arm diverged"
)
LOG_FROM = 10
"""A longer span of x, largest over smallest, is drawn on a log axis."""
SYMMETRIC_LOG_FROM = 100
"""As much of the gaps, largest over median: small ones would be a flat line on a linear axis."""
MARK_HEIGHT = 0.055  # share of the axis between the marks of two arms


def draw(data: pd.DataFrame) -> Canvas:
    """`data`: rows of `paired_seeds.COLUMNS`. A series without a value is a horizontal line."""
    canvas, grid = panels(list(data["panel"].unique()))
    look = styles(data["series"])
    for axes, (_, panel) in zip(grid, data.groupby("panel", sort=False), strict=True):
        axes.axhline(0, color="#000000", linewidth=0.8)
        for place, series in enumerate(in_order(panel["series"])):
            _draw_series(axes, panel[panel["series"] == series], look[series], place)
        _scale_x(axes, panel["value"].dropna())
        axes.set_xlabel(panel["key"].iloc[0])
        axes.legend(fontsize=7)
    _scale_y(grid[0], data["gap"].dropna().abs())
    canvas.supxlabel(CAPTION, fontsize=8)
    return canvas


def _draw_series(axes: Axes, rows: pd.DataFrame, style: Mapping[str, Any], place: int) -> None:
    means = rows.drop_duplicates("value").sort_values("value")
    label = f"{rows['series'].iloc[0]} ({_count(means['n'])})"
    if means["value"].isna().all():
        _draw_reference(axes, means.iloc[0], style, label)
        return
    color = style["color"]
    axes.plot(
        rows["value"],
        rows["gap"],
        linestyle="",
        marker=style["marker"],
        markersize=3,
        color=color,
        alpha=0.35,
        markeredgewidth=0,
    )
    arms = np.array([means["mean"] - means["low"], means["high"] - means["mean"]])
    axes.errorbar(
        means["value"],
        means["mean"],
        yerr=np.nan_to_num(arms.astype(float)),
        label=label,
        color=color,
        linestyle=style["linestyle"],
        linewidth=1.4,
        marker=style["marker"],
        markersize=4.5,
        capsize=2.5,
        elinewidth=0.9,
    )
    for row in means[means["diverged"] > 0].to_dict("records"):
        _mark_diverged(axes, row["value"], f"× {row['diverged']}/{row['pairs']}", color, place)


def _mark_diverged(axes: Axes, value: float, words: str, color: str, place: int) -> None:
    """At the top of the panel, a line an arm: there is no gap to draw."""
    height = 0.99 - place * MARK_HEIGHT
    axes.text(
        value,
        height,
        words,
        transform=axes.get_xaxis_transform(),
        color=color,
        fontsize=7,
        ha="center",
        va="top",
    )


def _draw_reference(axes: Axes, row: pd.Series, style: Mapping[str, Any], label: str) -> None:
    diverged = f", × {row['diverged']}/{row['pairs']}" if row["diverged"] else ""
    if pd.notna(row["low"]):
        axes.axhspan(row["low"], row["high"], color=style["color"], alpha=0.12, linewidth=0)
    height = row["mean"] if row["n"] else np.nan
    axes.axhline(
        height,
        color=style["color"],
        linestyle=style["linestyle"],
        linewidth=1.4,
        label=label + diverged,
    )


def _count(n: pd.Series) -> str:
    return f"n={n.min()}" if n.min() == n.max() else f"n={n.min()} to {n.max()}"


def _scale_x(axes: Axes, values: pd.Series) -> None:
    """Ticks at the values where there is room for them."""
    positive = values[values > 0]
    if len(positive) and positive.max() / positive.min() > LOG_FROM:
        if (values > 0).all():
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=positive.min())
    distinct = sorted(set(values))
    if len(distinct) <= 7:
        axes.set_xticks(distinct, [f"{value:g}" for value in distinct])
        axes.minorticks_off()


def _scale_y(axes: Axes, sizes: pd.Series) -> None:
    name = "gap to sync (nats per token)"
    middle = sizes[sizes > 0].median()
    if sizes.max() / middle > SYMMETRIC_LOG_FROM:
        axes.set_yscale("symlog", linthresh=10 ** np.floor(np.log10(middle)))
        name += ", symmetric log"
    axes.set_ylabel(name)
