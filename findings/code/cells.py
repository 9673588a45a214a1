"""Tables in Markdown, and what stands in their cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.statistics.intervals import mean_interval
from analysis.table.names import minus
from analysis.table.text import markdown

Row = Mapping[Any, Any]


def gap(row: Row | None) -> str:
    """`+0.153 [+0.102, +0.204]`; of one pair `+0.153`."""
    if row is None or not row["n"]:
        return ""
    if pd.isna(row["low"]):
        return minus(f"{row['gap']:+.3f}")
    return minus(f"{row['gap']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]")


def removed(row: Row | None) -> str:
    """`52 % [30, 70]`."""
    if row is None or pd.isna(row["removed"]):
        return ""
    low, high = (f"{100 * row[end]:.0f}" for end in ("removed_low", "removed_high"))
    return minus(f"{100 * row['removed']:.0f} % [{low}, {high}]")


def loss(row: Row | None) -> str:
    """Sync's."""
    return "" if row is None else f"{row['loss_sync']:.3f}"


def mean(differences: pd.Series) -> str:
    """Of pairs, with its interval."""
    values = differences.dropna().to_numpy()
    low, high = mean_interval(values)
    return gap({"n": len(values), "gap": values.mean(), "low": low, "high": high})


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return re.sub(r"\|  (?=\|)", "| ", markdown(heads, rows))


def rows_of(found: pd.DataFrame) -> dict[str, dict[str, Row]]:
    """Optimizer → arm → row of its gap; one point per optimizer."""
    by_optimizer: dict[str, dict[str, Row]] = {}
    for row in found[found["pairs"] > 0].to_dict("records"):
        by_optimizer.setdefault(row["optimizer"], {})[row["arm"]] = row
    return by_optimizer
