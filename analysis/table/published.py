"""The CSV of trials that a report published, read as the table that it was made of."""

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.table.points import VERSIONS, group_of
from analysis.table.rows import Row
from analysis.table.schema import TRIAL
from trainer.base.errors import BadInput, first_line, short
from trainer.base.status import ENDED, Status
from trainer.config.names import YOUNGER
from trainer.folder.wellformed import LARGEST

MAY_LACK = ("folder", "num_active_parameters")
"""Columns of the table that a published CSV may lack: a place on one machine, and what older
reports did not tell."""
WORDS = {"True": True, "False": False}
KINDS: dict[str, tuple[type, ...]] = {"Int64": (int,), "float64": (int, float), "object": (list,)}
"""Dtype of a column of the table → types of its values."""
OF_EVERY_TRIAL = {
    **dict.fromkeys(("batch_size", "seq_len"), "Int64"),
    **dict.fromkeys(("pipeline.num_stages", "pipeline.num_microbatches"), "Int64"),
    "tokens_per_parameter": "float64",
}
NUMBERS = OF_EVERY_TRIAL | dict.fromkeys(
    ("optimizer.lr", "optimizer.momentum", "optimizer.weight_decay"), "float64"
)
"""Keys of the config that tables and verdicts compute with → dtype."""
NEEDED = [name for name in (*TRIAL, *OF_EVERY_TRIAL) if name not in MAY_LACK]
STATUSES = (*ENDED, Status.UNFINISHED)


def is_published(path: Path) -> bool:
    """Whether trials are read from one CSV, not from a folder."""
    return path.suffix == ".csv" and path.is_file()


def read_published(path: Path) -> list[Row]:
    """Return one row per line, with the values that the table had; a missing value is None.

    There are no curves: `folder` names the line, and no such folder exists. The name of the data
    stands for its path. Raises BadInput for a file that is no such table, naming line and column.
    """
    try:
        rows = [*_rows(path)]
    except (OSError, ValueError, csv.Error) as error:
        allowed = f"must be a trials.csv of a report ({first_line(error)})"
        raise BadInput("results", path, allowed) from None
    return [
        dict(YOUNGER) | row | {"folder": str(path / row["trial_id"]), "data.path": row["data"]}
        for row in rows
    ]


def _rows(path: Path) -> Iterator[Row]:
    """Yield the values of each line. Raises ValueError, csv.Error, OSError."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        names = next(lines, [])
        if lacking := [name for name in NEEDED if name not in names]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        if len({*names}) < len(names):
            raise ValueError("it has a column twice")
        seen = set()
        for line in filter(None, lines):
            where = f"line {lines.line_num}"
            if len(line) != len(names):
                raise ValueError(f"{where} has {len(line)} of {len(names)} columns")
            row = {name: _value(name, text, where) for name, text in zip(names, line, strict=True)}
            if row["trial_id"] is None or row["trial_id"] in seen:
                raise ValueError(f"{where} has the trial of another line, or none")
            seen.add(row["trial_id"])
            yield row


def _value(name: str, text: str, where: str) -> Any:
    """Return the value that `text` stands for in the column `name`; None if it is empty.

    Raises ValueError if no value of the column is written so.
    """
    dtype = TRIAL[name][0] if name in TRIAL else NUMBERS.get(name, "")
    try:
        value = _parsed(dtype if group_of(name) != VERSIONS else "string", text)
    except (ValueError, OverflowError):
        raise ValueError(f"{where} has {name}={short(text)}") from None
    if name == "status" and value not in STATUSES:
        raise ValueError(f"{where} has {name}={short(text)}")
    return value


def _parsed(dtype: str, text: str) -> Any:
    """Return the value in a column of this `dtype`, which is empty for those outside the schema."""
    if not text:
        return None
    if dtype == "string":
        return text
    if dtype.startswith("datetime"):
        return pd.Timestamp(text).value
    try:
        value = WORDS[text] if text in WORDS else json.loads(text)
    except (ValueError, RecursionError):
        value = text
    is_number = type(value) in (int, float)
    if is_number and not (abs(value) <= LARGEST and math.isfinite(value)):
        value = text
    if dtype in KINDS and type(value) not in KINDS[dtype]:
        raise ValueError
    return value if is_number or isinstance(value, bool) or dtype in KINDS else text
