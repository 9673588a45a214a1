"""The gap table for people: Markdown, plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.arms import OF_THE_ARM

SIZES = ("num_parameters", "batch_size", "seq_len", "num_updates")
HEAD = ("optimizer", "arm", "sync loss", "loss", "gap", "95 % interval", "n", "EF removed")


def swept(frame: pd.DataFrame) -> list[str]:
    """The config's keys that tell the points of the table apart."""
    keys = [
        column
        for column in frame.columns
        if "." in column or column in ("batch_size", "seq_len", "num_parameters", "num_updates")
    ]
    keys = [
        key for key in keys if key.partition(".")[0] not in OF_THE_ARM and "_target_" not in key
    ]
    return [key for key in keys if _tells_points_apart(frame, key)]


def _tells_points_apart(frame: pd.DataFrame, key: str) -> bool:
    """Whether one optimizer has several values of `key`, at different points."""
    values = frame.groupby(["optimizer", "point"])[key].first().astype(str)
    return bool((values.groupby("optimizer").nunique() > 1).any())


def gap_rows(table: pd.DataFrame, frame: pd.DataFrame) -> list[list[str]]:
    """Head and rows of text, from `gaps(frame)`."""
    keys = swept(frame) if len(table) else []
    values = frame.drop_duplicates("point").set_index("point")[keys] if keys else None
    rows = [[*HEAD[:1], *keys, *HEAD[1:]]]
    for _, row in table.iterrows():
        of_point = [] if values is None else [f"{v}" for v in values.loc[row["point"]]]
        rows.append([row["optimizer"], *of_point, row["arm"], *_numbers(row)])
    return rows


def _numbers(row: pd.Series) -> list[str]:
    interval = f"{row['low']:+.4f} … {row['high']:+.4f}" if not math.isnan(row["low"]) else "n=1"
    removed = "—"
    if not math.isnan(row["removed"]):
        share, low, high = (100 * row[k] for k in ("removed", "removed_low", "removed_high"))
        removed = f"{share:.0f} % ({low:.0f} … {high:.0f})"
    count = str(row["n"])
    if row["diverged"]:
        count += f", {row['diverged']} of {row['pairs']} diverged"
    if row["sync_diverged"]:
        count += f", {row['sync_diverged']} left out: sync diverged"
    if not row["n"]:
        return ["—", "—", "—", "—", count, removed]
    losses = [f"{row['loss_sync']:.4f}", f"{row['loss']:.4f}", f"{row['gap']:+.4f}"]
    return [*losses, interval, count, removed]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned so that it reads well as plain text too."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "| " + " | ".join("-" * w for w in widths) + " |", *lines[1:]])
