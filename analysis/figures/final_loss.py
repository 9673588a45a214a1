"""Final validation loss: a panel an optimizer, every seed of every arm, its mean and its gap."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.figures.figure import PANEL_WIDTH, in_order, label_rows, panels, styles
from analysis.figures.shown import shown_results
from analysis.pairs import VARIANT
from analysis.tables import diverged_text, gap_text

COLUMNS = ["panel", "series", "seed", "status", "final_val_loss", "trial_id"]
OF_GAP = ["n", "gap", "low", "high", "diverged", "pairs"]
ARM_WIDTH, ROOM_FOR_WORDS = 1.15, 0.25  # inches; a share of the axis


def data(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """A row a trial that is shown, with the gap of its arm beside it (none for sync)."""
    shown = shown_results(trials, gaps)
    with_gap = shown.merge(gaps, on=["point", "arm", *VARIANT], how="left", suffixes=("", "_gap"))
    return with_gap[[*COLUMNS, *OF_GAP]]


def draw(data: pd.DataFrame) -> Canvas:
    """Trials that diverged have no loss: they are counted in words."""
    num_arms = data.groupby("panel")["series"].nunique().max()
    titles = list(data["panel"].unique())
    canvas, grid = panels(titles, width=max(PANEL_WIDTH, ARM_WIDTH * num_arms))
    for axes, (_, panel) in zip(grid, data.groupby("panel", sort=False), strict=True):
        _draw_panel(axes, panel)
    low, high = grid[0].get_ylim()
    grid[0].set_ylim(top=high + ROOM_FOR_WORDS * (high - low))
    label_rows(grid, "final validation loss (nats per token)")
    caption = "bars: means; points: seeds; above: mean gap to sync and its 95 % interval"
    canvas.supxlabel(caption, fontsize=9)
    return canvas


def _draw_panel(axes: Axes, panel: pd.DataFrame) -> None:
    names, look = in_order(panel["series"]), styles(panel["series"])
    for position, name in enumerate(names):
        rows = panel[panel["series"] == name]
        losses, style = rows["final_val_loss"].dropna(), look[name]
        spread = [position + 0.12 * (i - (len(losses) - 1) / 2) for i in range(len(losses))]
        axes.plot(
            spread,
            losses,
            linestyle="",
            marker=style["marker"],
            color=style["color"],
            markersize=4.5,
            alpha=0.75,
        )
        if len(losses):
            axes.hlines(losses.mean(), position - 0.32, position + 0.32, color=style["color"])
        _annotate(axes, position, rows)
    _label(axes, names)


def _annotate(axes: Axes, position: int, rows: pd.DataFrame) -> None:
    top = rows["final_val_loss"].max()
    axes.annotate(
        _words(rows),
        (position, top if pd.notna(top) else 0.0),
        xycoords="data" if pd.notna(top) else axes.get_xaxis_transform(),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7,
    )


def _words(rows: pd.DataFrame) -> str:
    row: dict[Any, Any] = rows.iloc[0].to_dict()
    if pd.isna(row["n"]):
        diverged = int((rows["status"] == "diverged").sum())
        return f"{diverged} of {len(rows)} diverged" if diverged else f"n={len(rows)}"
    diverged_pairs = diverged_text(row)
    count = f"{diverged_pairs} diverged" if diverged_pairs else f"n={row['n']}"
    return gap_text(row, separator="\n", digits=3) + f"\n{count}" if row["n"] else count


def _label(axes: Axes, names: list[str]) -> None:
    crowded = len(names) > 3 or max(map(len, names)) > 12
    axes.set_xticks(
        range(len(names)),
        names,
        rotation=30 if crowded else 0,
        ha="right" if crowded else "center",
    )
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")
