"""Draws gaps against a number: means with their interval, every seed, and what diverged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.transforms import offset_copy

from analysis.figures.figure import in_order, label_rows, panels, styles

CAPTION = (
    "mean gap and its 95 % interval over n seeds; faint: each seed;\n"
    "× with k/n: k of n pairs in which the arm diverged"
)
LOG_FROM = 10
"""A longer span of x, largest over smallest, is drawn on a log axis."""
SYMMETRIC_LOG_FROM = 100
"""As much of the gaps, largest over median: small ones would be a flat line on a linear axis."""
MARK_HEIGHT = 0.06  # share of the axis that the mark of an arm that diverged takes
MARGIN = 0.06  # share of the values' span left and right of them
SEED_OFFSET = 5  # points to the right of the mean
MAX_TICKS = 7
CROWDED = 0.08  # share of the axis: ticks closer than that are turned


def draw(data: pd.DataFrame) -> Canvas:
    """`data`: rows of `paired_seeds.COLUMNS`. A series without a value is a horizontal line."""
    canvas, grid = panels(list(data["panel"].unique()))
    look = styles(data["series"])
    label_rows(grid, "gap to sync (nats per token)" + _scale_y(grid[0], data["gap"].dropna().abs()))
    for axes, (_, panel) in zip(grid, data.groupby("panel", sort=False), strict=True):
        axes.axhline(0, color="#000000", linewidth=0.8)
        for place, series in enumerate(in_order(panel["series"])):
            _draw_series(axes, panel[panel["series"] == series], look[series], place)
        _scale_x(axes, panel["value"].dropna())
        axes.set_xlabel(panel["key"].iloc[0])
    if (data["diverged"] > 0).any():
        low, high = grid[0].get_ylim()
        room = MARK_HEIGHT * data.groupby("panel")["series"].nunique().max()
        grid[0].set_ylim(low, _beyond(grid[0].yaxis, high, low, room))
    for axes in grid:
        axes.legend(fontsize=7)
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
        alpha=0.45,
        markeredgewidth=0,
        transform=offset_copy(
            axes.transData, axes.get_figure(root=True), SEED_OFFSET, units="points"
        ),
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
    low, high = distinct[0], distinct[-1]
    ends = _beyond(axes.xaxis, low, high, MARGIN), _beyond(axes.xaxis, high, low, MARGIN)
    axes.set_xlim(*ends)  # also where the arm has no gap, because it diverged
    if len(distinct) <= MAX_TICKS:
        places = axes.transData.transform([(value, 0) for value in distinct])[:, 0]
        crowded = np.diff(places).min() < CROWDED * np.ptp(places)
        words = [f"{value:g}" for value in distinct]
        axes.set_xticks(distinct, words, rotation=45 if crowded else 0)
        axes.minorticks_off()


def _scale_y(axes: Axes, sizes: pd.Series) -> str:
    """What the title of the axis says of its scale."""
    middle = sizes[sizes > 0].median()
    if sizes.max() / middle > SYMMETRIC_LOG_FROM:
        threshold = 10 ** np.floor(np.log10(middle))
        axes.set_yscale("symlog", linthresh=threshold)
        return f"\nlinear up to {threshold:g}, then logarithmic"
    return ""


def _beyond(axis: Axis, end: float, start: float, share: float) -> float:
    """The value that lies past `end` by a share of the way from `start`, whatever the scale."""
    scale = axis.get_transform()
    first, last = scale.transform(np.array([start, end]))
    beyond: float = scale.inverted().transform(np.array([last + share * (last - first)]))[0]
    return beyond
