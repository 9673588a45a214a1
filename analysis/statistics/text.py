"""The gap table for people: Markdown in files, a ruled table on a terminal."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

Cells = Mapping[Hashable, Any]

WIDTH_OF_FILES = 10_000
"""Columns; wide enough that no cell of a Markdown table is broken."""
MAX_PRINTED = 60
"""Rows of a table that a terminal or a log is given."""


def gap_text(row: Cells) -> str:
    """`+0.2380 [+0.2120, +0.2640]`; `+0.2380 n=1` for a single pair; `—` for none."""
    return f"{row['gap']:+.4f} {_interval(row, 'low', 'high', '+.4f')}" if row["n"] else "—"


def diverged_text(row: Cells) -> str:
    """`1 of 3`; empty if none did."""
    return f"{row['diverged']} of {row['pairs']}" if row["diverged"] else ""


def _interval(row: Cells, low: str, high: str, form: str) -> str:
    return "n=1" if math.isnan(row[low]) else f"[{row[low]:{form}}, {row[high]:{form}}]"


def _loss(name: str) -> Callable[[Cells], str]:
    return lambda row: "—" if math.isnan(row[name]) else f"{row[name]:.4f}"


def _share(row: Cells) -> str:
    if math.isnan(row["removed"]):
        return ""
    return f"{row['removed']:.0%} {_interval(row, 'removed_low', 'removed_high', '.0%')}"


def _plain(name: str) -> Callable[[Cells], str]:
    return lambda row: str(row[name])


TEXTS: Mapping[str, Callable[[Cells], str]] = {
    "optimizer": _plain("optimizer"),
    "setting": _plain("setting"),
    "arm": _plain("arm"),
    "stages": _plain("num_stages"),
    "microbatches": _plain("num_microbatches"),
    "sync loss": _loss("loss_sync"),
    "loss": _loss("loss"),
    "gap [95 %]": gap_text,
    "n": _plain("n"),
    "diverged": diverged_text,
    "gap removed [95 %]": _share,
}
VARYING = ("setting", "stages", "microbatches")
"""Columns that are shown only if they tell rows apart."""


def gap_table(gaps: pd.DataFrame, *, width: int | None = None) -> str:
    """The rows that have a pair: Markdown, or ruled lines of `width` columns for a terminal."""
    rows = gaps[gaps["pairs"] > 0].to_dict("records")
    cells = {name: [text(row) for row in rows] for name, text in TEXTS.items()}
    shown = [name for name in cells if name not in VARYING or len(set(cells[name])) > 1]
    table = Table(*shown, box=box.MARKDOWN if width is None else box.SIMPLE_HEAD)
    for values in zip(*(cells[name] for name in shown), strict=True):
        table.add_row(*values)
    buffer = io.StringIO()
    Console(file=buffer, width=width or WIDTH_OF_FILES, markup=False, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in buffer.getvalue().strip("\n").splitlines())


def printed_gaps(gaps: pd.DataFrame, width: int | None) -> str:
    """`gap_table`, or in words that it is too long to print; empty while there is no pair."""
    num_rows = int((gaps["pairs"] > 0).sum())
    if num_rows > MAX_PRINTED:
        return f"{num_rows} gaps: too many to print, the report has them"
    return gap_table(gaps, width=width) if num_rows else ""
