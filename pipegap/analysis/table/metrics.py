"""The files of one trial: its config, what it measured at each update, and its curves of losses."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

from pipegap.analysis.table.rows import Row
from pipegap.trainer.folder.metrics import row_of, rows_of
from pipegap.trainer.folder.wellformed import CONFIG, read

MOST = 100
"""Points of a curve that a small picture can show."""
EVALUATED = b'"val_loss"'

Point = tuple[int, float]
_T = TypeVar("_T")


class DamagedRows(UserWarning):
    """Lines of a metrics.jsonl are damaged, so that curves lack their updates; or answers are."""


def config_of(folder: str) -> Row:
    """Return one trial's resolved config, in which 1 is not 1.0 as it is in a column of floats.

    Empty if there is none. Raises Damaged.
    """
    try:
        return read(Path(folder) / "config.json", CONFIG)
    except FileNotFoundError:
        return {}


def validation_losses(folder: str) -> pd.DataFrame:
    """Return columns `update` (0-based) and `val_loss` of one trial; NaN if not finite."""
    return _series(folder, "val_loss")


def training_losses(folder: str) -> pd.DataFrame:
    """Return columns `update` (0-based) and `train_loss` of one trial; NaN if not finite."""
    return _series(folder, "train_loss")


def _series(folder: str, name: str) -> pd.DataFrame:
    rows = [*metrics(folder, name)]
    # Of lists pandas asks each value for its type, which takes as long as to read the file.
    updates = np.array([row["update"] for row in rows], dtype=np.int64 if rows else object)
    values = np.array([row[name] for row in rows], dtype=float)
    return pd.DataFrame({"update": updates, name: values})


def metrics(folder: str, key: str) -> Iterator[Row]:
    """Return the rows of one trial's metrics.jsonl that have `key`, by update.

    No row if there is no such file. Warns of lines that are damaged, which are left out.
    """
    path, quoted = Path(folder) / "metrics.jsonl", f'"{key}"'.encode()
    content = _content(path)
    if quoted not in content and _are_whole(content):
        return iter(())
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # a running trial may be writing it
    rows = [row_of(line) for line in lines if quoted in line or not _looks_whole(line)]
    by_update = {row["update"]: row for row in rows if row is not None}
    if num_damaged := rows.count(None):
        message = f"{path} has {num_damaged} damaged lines, which are left out"
        warnings.warn(f"{message}: run its trial again", DamagedRows, stacklevel=2)
    return (by_update[update] for update in sorted(by_update) if key in by_update[update])


def _content(path: Path) -> bytes:
    """Empty if there is no such file, or no more."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return path.read_bytes()
    return b""


def _are_whole(content: bytes) -> bool:
    """Return whether `_looks_whole` of every line, in a tenth of the time."""
    inner = content.count(b"\n") - 1
    return _looks_whole(content) and content.count(b"}\n{") == inner and b"\r" not in content


def _looks_whole(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}\n")


class Curves(NamedTuple):
    """Update and loss of evenly spaced updates, with the first and the last."""

    train: Sequence[Point]
    validation: Sequence[Point]
    num_updates: int
    num_evaluations: int

    @property
    def words(self) -> str:
        """How many of the updates and evaluations there are."""
        if not self.num_updates:
            return "No update is recorded."
        return (
            f"{len(self.train)} of {self.num_updates:,} updates and {len(self.validation)} of "
            f"{self.num_evaluations:,} evaluations, evenly spaced; losses in nats per token."
        )


def curves(folder: Path) -> Curves:
    """The curves of the trial in `folder`, of MOST points each. Only the lines that are shown are
    parsed; a damaged one is left out."""
    lines = _content(folder / "metrics.jsonl").splitlines(keepends=True)
    evaluated = [line for line in lines if EVALUATED in line]
    return Curves(
        _points(rows_of(spaced(lines, MOST)), "train_loss"),
        _points(rows_of(spaced(evaluated, MOST)), "val_loss"),
        len(lines),
        len(evaluated),
    )


def spaced(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` (2 or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def _points(rows: Iterable[Row | None], key: str) -> list[Point]:
    whole_rows = filter(None, rows)
    return [(row["update"], row[key]) for row in whole_rows if row.get(key) is not None]
