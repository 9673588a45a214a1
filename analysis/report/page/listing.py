"""A table as the page shows it: words for people, and the numbers that it is sorted by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from analysis.table.names import OPTIMIZERS, minus

MOST_ROWS = 500
"""Rows on the page; the CSV has all."""
LOW, HIGH = "_low", "_high"


class Cell(NamedTuple):
    """`values`: as in the CSV, one per column that is shown here; None is missing."""

    words: str
    values: Sequence[Any]

    @property
    def is_number(self) -> bool:
        """Whether it is a number, which must not be broken into lines."""
        return isinstance(self.values[0], int | float)


class Listing(NamedTuple):
    """`heads`: the title of each shown column, and the columns of the CSV that it shows."""

    title: str
    heads: Sequence[tuple[str, Sequence[str]]]
    rows: Sequence[Sequence[Cell]]
    note: str
    file: str
    num_rows: int


def listed(
    title: str,
    table: pd.DataFrame,
    note: str,
    file: str,
    arms: Mapping[str, str] = MappingProxyType({}),
) -> Listing:
    """The listing of a table. A mean and its interval (`x`, `x_low`, `x_high`) are one column.

    `arms`: their names for people, who read those of optimizers and arms; the values keep theirs.
    """
    names = [str(name) for name in table]
    ends = {f"{name}{end}" for name in names for end in (LOW, HIGH) if f"{name}{LOW}" in names}
    heads = [(name, _columns(name, names)) for name in names if name not in ends]
    said = {"optimizer": OPTIMIZERS, "arm": arms}
    plain = table.astype(object).where(table.notna(), None)
    records = plain.head(MOST_ROWS).to_dict("records")
    rows = [[_cell(name, columns, row, said) for name, columns in heads] for row in records]
    named = [(_head(name, arms), columns) for name, columns in heads]
    return Listing(title, named, rows, note, file, len(table))


def _head(name: str, arms: Mapping[str, str]) -> str:
    """`delay + EF gap` of the column `delay_ef gap`."""
    arm, space, rest = name.rpartition(" ") if name not in arms else (name, "", "")
    return f"{arms.get(arm, arm)}{space}{rest}"


def _columns(name: str, names: Sequence[str]) -> list[str]:
    interval = [f"{name}{end}" for end in (LOW, HIGH)]
    return [name, *(interval if interval[0] in names else [])]


def _cell(
    name: str,
    columns: Sequence[str],
    row: Mapping[Any, Any],
    said: Mapping[str, Mapping[str, str]],
) -> Cell:
    values = [row[column] for column in columns]
    words = [_words(name, value, signed=len(columns) > 1) for value in values]
    interval = f" [{words[1]}, {words[2]}]" if len(words) > 1 and words[1] else ""
    own = said.get(name, {}).get(words[0], words[0])
    return Cell(minus(own + interval), values)


def _words(name: str, value: Any, *, signed: bool) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if "removed" in name:
        return f"{value:.0%}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:+.4f}" if signed else f"{value:.4f}"
