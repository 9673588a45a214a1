"""Figures: for each a function that makes its table of data and one that draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.gaps import gaps
from analysis.load import metrics

Style = tuple[str, Any, str]

STYLES: dict[str, Style] = {
    "sync": ("#000000", "-", "o"),
    "delay": ("#d55e00", "--", "s"),
    "delay_ef": ("#0072b2", "-.", "^"),
}
"""Arm → colour (Okabe and Ito: safe for the colour-blind), line and marker (for print)."""

OTHERS: list[Style] = [
    ("#009e73", ":", "D"),
    ("#cc79a7", (0, (5, 1)), "v"),
    ("#e69f00", (0, (1, 1)), "P"),
]
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pipegap",
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Entry:
    """`data(frame)` is what the figure shows, and the CSV beside it; `draw(data)` shows it."""

    data: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]


def best_points(frame: pd.DataFrame) -> pd.DataFrame:
    """The finished trials of each optimizer's best point: the one with the lowest sync loss."""
    done = frame[frame["status"] == "completed"]
    sync = done[done["arm"] == "sync"].groupby(["optimizer", "point"])["final_val_loss"].mean()
    if sync.empty:
        return done.iloc[:0]
    best = [key[1] for key in sync.groupby("optimizer").idxmin()]
    return done[done["point"].isin(best)]


def curves_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Validation loss (nats a token) after so many tokens, a row an evaluation."""
    parts = []
    for _, trial in best_points(frame).iterrows():
        rows = metrics(trial["folder"]).dropna(subset="val_loss")
        tokens = (rows["update"] + 1) * trial["batch_size"] * trial["seq_len"]
        labels = {key: trial[key] for key in ("optimizer", "arm", "seed", "optimizer.lr")}
        parts.append(pd.DataFrame({**labels, "tokens": tokens, "val_loss": rows["val_loss"]}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def draw_curves(data: pd.DataFrame) -> Figure:
    """A panel an optimizer: mean over seeds a line an arm, seeds faint."""
    figure, panels = _panels(data)
    for axes, (optimizer, part) in zip(panels, data.groupby("optimizer"), strict=True):
        for arm, of_arm in _by_arm(part):
            colour, line, marker = _style(arm, data)
            for _, one in of_arm.groupby("seed"):
                axes.plot(one["tokens"], one["val_loss"], color=colour, alpha=0.25, linewidth=0.7)
            mean = of_arm.groupby("tokens")["val_loss"].mean()
            label = f"{arm}, n={of_arm['seed'].nunique()}"
            axes.plot(mean, color=colour, linestyle=line, marker=marker, markersize=4, label=label)
        axes.set_title(f"{optimizer}, lr {part['optimizer.lr'].iloc[0]:g}")
        axes.set_xlabel("training tokens")
        axes.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        axes.legend(frameon=False)
    panels[0].set_ylabel("validation loss, nats a token")
    return figure


def losses_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Final validation loss of every trial, with the gap of its arm."""
    best = best_points(frame)
    keys = ["optimizer", "point", "arm"]
    columns = [*keys, "seed", "optimizer.lr", "final_val_loss", "trial_id"]
    table = gaps(frame).reindex(columns=[*keys, "gap", "low", "high", "n"])
    return best[columns].merge(table, on=keys, how="left").sort_values([*keys, "seed"])


def draw_losses(data: pd.DataFrame) -> Figure:
    """A panel an optimizer: seeds as points, their mean as a bar, the gap with its interval."""
    figure, panels = _panels(data)
    for axes, (optimizer, part) in zip(panels, data.groupby("optimizer"), strict=True):
        arms = list(_by_arm(part))
        for x, (arm, of_arm) in enumerate(arms):
            colour, _, marker = _style(arm, data)
            values = of_arm["final_val_loss"].to_numpy(float)
            spread = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else [0.0]
            axes.scatter(x + np.asarray(spread), values, color=colour, marker=marker, s=18)
            axes.hlines(values.mean(), x - 0.28, x + 0.28, color=colour, linewidth=2)
            _annotate(axes, x, of_arm)
        axes.set_xticks(range(len(arms)), [f"{arm}\nn={len(of_arm)}" for arm, of_arm in arms])
        axes.set_xlim(-0.6, len(arms) - 0.4)
        axes.margins(y=0.25)
        axes.set_title(f"{optimizer}, lr {part['optimizer.lr'].iloc[0]:g}")
    panels[0].set_ylabel("final validation loss, nats a token")
    return figure


def _annotate(axes: Axes, x: int, of_arm: pd.DataFrame) -> None:
    """The gap over the highest point of its arm."""
    row = of_arm.iloc[0]
    if not np.isnan(row["gap"]):
        interval = "" if np.isnan(row["low"]) else f"\n[{row['low']:+.3f}, {row['high']:+.3f}]"
        axes.annotate(
            f"{row['gap']:+.3f}{interval}",
            (x, of_arm["final_val_loss"].max()),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
        )


FIGURES = {
    "validation_curves": Entry(curves_data, draw_curves),
    "final_losses": Entry(losses_data, draw_losses),
}


def save_figures(frame: pd.DataFrame, out: Path) -> list[Path]:
    """Writes every figure that has data as SVG and PNG with its CSV; returns the SVGs."""
    written = []
    for name, entry in FIGURES.items():
        data = entry.data(frame)
        if data.empty:
            continue
        data.to_csv(out / f"{name}.csv", index=False)
        with mpl.rc_context(LOOK):
            figure = entry.draw(data)
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
            figure.savefig(out / f"{name}.png", dpi=150)
        written.append(out / f"{name}.svg")
    return written


def _panels(data: pd.DataFrame) -> tuple[Figure, list[Axes]]:
    """A row of panels, one an optimizer, that share the axis of losses."""
    count = data["optimizer"].nunique()
    figure = Figure(figsize=(1.2 + 3.2 * count, 3.4), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=True, squeeze=False)[0])


def _by_arm(data: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """sync first, then by name: the order of every figure."""
    arms = sorted(data["arm"].unique(), key=lambda arm: (arm != "sync", len(arm), arm))
    return [(arm, data[data["arm"] == arm]) for arm in arms]


def _style(arm: str, data: pd.DataFrame) -> Style:
    others = sorted(set(data["arm"]) - set(STYLES))
    return STYLES.get(arm) or OTHERS[others.index(arm) % len(OTHERS)]
