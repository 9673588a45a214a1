"""What a figure is, and how all of them look and are saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

LOOK: dict[Any, Any] = {
    "figure.facecolor": "white",
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.edgecolor": "white",
    "legend.framealpha": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "pipegap",
}
STYLES: Mapping[str, Mapping[str, Any]] = {
    "sync": {"color": "#000000", "linestyle": "-", "marker": "o"},
    "delay": {"color": "#d55e00", "linestyle": "--", "marker": "s"},
    "delay_ef": {"color": "#0072b2", "linestyle": "-.", "marker": "^"},
}
"""Colours that colour-blind eyes tell apart (Okabe and Ito 2008); dashes for black and white."""
OTHER_STYLES: Sequence[Mapping[str, Any]] = (
    {"color": "#009e73", "linestyle": ":", "marker": "D"},
    {"color": "#cc79a7", "linestyle": (0, (5, 1)), "marker": "v"},
    {"color": "#8c6d00", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "P"},
    {"color": "#56b4e9", "linestyle": (0, (1, 1)), "marker": "X"},
)
MAX_WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 15.0, 3.6, 3.0  # inches


class Figure(NamedTuple):
    """`data(trials, gaps)` is what is shown (empty: no figure), `draw(data)` how."""

    name: str
    data: Callable[[pd.DataFrame, pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Canvas]


def save(figure: Figure, data: pd.DataFrame, out: Path) -> None:
    """Writes NAME.svg, NAME.png and NAME.csv; the same data give the same bytes."""
    data.to_csv(out / f"{figure.name}.csv", index=False)
    with mpl.rc_context(LOOK):
        canvas = figure.draw(data)
        canvas.savefig(out / f"{figure.name}.svg", metadata={"Date": None})
        canvas.savefig(out / f"{figure.name}.png")


def styles(arms: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """A colour, dash and marker for each arm: fixed for the main ones, then in order of name."""
    names = list(dict.fromkeys(arms))
    others = sorted(name for name in names if name not in STYLES)
    return {**STYLES, **dict(zip(others, islice(cycle(OTHER_STYLES), len(others)), strict=True))}


def in_order(arms: Iterable[str]) -> list[str]:
    """sync, delay and delay_ef first, then by name."""
    names = set(arms)
    return [name for name in styles(names) if name in names]


def panels(titles: Sequence[str], width: float = PANEL_WIDTH) -> tuple[Canvas, list[Axes]]:
    """One panel, `width` inches wide, a title; all with one y axis."""
    columns = max(1, min(len(titles), int(MAX_WIDTH / width)))
    rows = -(-len(titles) // columns)
    size = (width * columns + 0.4, PANEL_HEIGHT * rows + 0.3)
    canvas = Canvas(figsize=size, layout="constrained")
    grid = canvas.subplots(rows, columns, sharey=True, squeeze=False).flatten().tolist()
    for axes, title in zip(grid, titles, strict=False):
        axes.set_title(title, loc="left")
    for unused in grid[len(titles) :]:
        unused.remove()
    return canvas, grid[: len(titles)]


def label_rows(grid: Iterable[Axes], words: str) -> None:
    """The title of the y axis, at the first panel of each row."""
    for axes in grid:
        place = axes.get_subplotspec()
        if place is not None and place.is_first_col():
            axes.set_ylabel(words)
