"""A table as the page shows it: words for people, and the numbers that it is sorted by."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from pipegap.analysis.table.names import OPTIMIZERS, minus

MOST_ROWS = 500
"""Rows on the page, unless more are asked for; the CSV has all."""
LOW, HIGH = "_low", "_high"
COMMAND = "command"
"""Name of the column that holds commands."""
TRIAL = "trial_id"
"""Name of the column whose cells open a trial."""

CellData = list[Any] | str | None


class Cell(NamedTuple):
    """A cell: its words, and as in the CSV one value per column that it shows; None is missing."""

    words: str
    values: Sequence[Any]

    @property
    def data(self) -> CellData:
        """What the page holds: the words alone where they are the only value, else words and
        values; None is an empty cell."""
        if self.values == [None]:
            return None
        return self.words if self.values == [self.words] else [self.words, *self.values]


class Head(NamedTuple):
    """A shown column. `names` are the columns of the CSV that it shows, `kind` is trial, command,
    number or text."""

    title: str
    names: Sequence[str]
    kind: str


class Listing(NamedTuple):
    """A table of the page. `file` is its CSV, which has `num_rows` rows."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    note: str
    file: str
    num_rows: int

    @property
    def name(self) -> str:
        """Its place on the page."""
        return f"table-{self.file.removesuffix('.csv')}"

    @property
    def tex(self) -> str:
        """The file that `write_latex` writes."""
        return f"{self.file.removesuffix('.csv')}.tex"

    @property
    def data(self) -> dict[str, Any]:
        """The heads and columns for the script of the page."""
        cells = [[row[place].data for row in self.rows] for place in range(len(self.heads))]
        return {
            "heads": [head._asdict() for head in self.heads],
            "columns": [_shared(column) for column in cells],
        }


def _shared(column: Sequence[CellData]) -> dict[str, Any]:
    """Return the different `cells` of a column and `at`, the place of each row's cell among them.

    `at` is None where all cells differ. Most columns say a few things many times, and a page must
    stay small.
    """
    texts = [repr(cell) for cell in column]
    different = dict(zip(texts, column, strict=True))
    places = {text: place for place, text in enumerate(different)}
    at = [places[text] for text in texts] if len(different) < len(column) else None
    return {"cells": [*different.values()], "at": at}


def listed(
    title: str,
    table: pd.DataFrame,
    note: str,
    file: str,
    *,
    arms: Mapping[str, str] = MappingProxyType({}),
    most: int = MOST_ROWS,
) -> Listing:
    """Return the listing of a table.

    A mean and its interval (`x`, `x_low`, `x_high`) are one column. People read names of
    optimizers and arms (`arms`); the values of the cells keep theirs.
    """
    names = [str(name) for name in table]
    ends = {f"{name}{end}" for name in names for end in (LOW, HIGH) if f"{name}{LOW}" in names}
    shown = {
        name: [name, *(f"{name}{end}" for end in (LOW, HIGH) if f"{name}{end}" in ends)]
        for name in names
        if name not in ends
    }
    said = {"optimizer": OPTIMIZERS, "arm": arms}
    plain = table.astype(object).where(table.notna(), None)
    records = plain.head(most).to_dict("records")
    rows = [[_cell(name, columns, row, said) for name, columns in shown.items()] for row in records]
    heads = [
        Head(_head(name, arms), columns, _kind(name, table[name]))
        for name, columns in shown.items()
    ]
    return Listing(title, heads, rows, note, file, len(table))


def _head(name: str, arms: Mapping[str, str]) -> str:
    """Return `delay + EF gap` for the column `delay_ef gap`, `loss of sync` for `loss_sync`."""
    arm, space, rest = name.rpartition(" ") if name not in arms else (name, "", "")
    words = f"{arms.get(arm, arm)}{space}{rest}"
    return words.replace("_sync", " of sync").replace("_", " ")


def write_latex(listing: Listing, out: Path) -> None:
    """Write the rows of the page as a LaTeX table of the package booktabs."""
    cells = [[cell.words for cell in row] for row in listing.rows]
    table = pd.DataFrame(cells, columns=[head.title for head in listing.heads])
    style = table.style.hide(axis="index")
    style = style.format(escape="latex").format_index(escape="latex", axis="columns")
    (out / listing.tex).write_text(
        style.to_latex(hrules=True, column_format="l" * table.shape[1]), "utf-8"
    )


def _kind(name: str, column: pd.Series) -> str:
    if name in (TRIAL, COMMAND):
        return "trial" if name == TRIAL else COMMAND
    return "number" if pd.api.types.is_numeric_dtype(column) else "text"


def _cell(
    name: str, columns: Sequence[str], row: Mapping[Any, Any], said: Mapping[str, Mapping[str, str]]
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
