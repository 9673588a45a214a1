"""metrics.jsonl: one row per update, written by one process at a time, and read after a crash."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from pipegap.trainer.base.atomic import partial, publish
from pipegap.trainer.folder.wellformed import ROW, ROWS, check, parse

Row = dict[str, Any]
TAIL = 1 << 16
"""Bytes at the end of the file that hold its last row."""


class Line(NamedTuple):
    """One line of the file, and the wall seconds that the trial had taken by then."""

    content: bytes
    wall_seconds: float


def read(path: Path) -> dict[int, Line]:
    """The whole lines by their update, sorted; of several of one update, the last.

    What a crash tore or filled with zeros is no line.
    """
    content = path.read_bytes() if path.is_file() else b""
    lines: dict[int, Line] = {}
    for line in content.splitlines(keepends=True):
        if (row := row_of(line)) is not None:
            lines[row["update"]] = Line(line, row.get("wall_seconds", 0.0))
    return dict(sorted(lines.items()))


def row_of(line: bytes) -> Row | None:
    """The row in a line of the file; None if the line is not whole."""
    try:
        return parse(line, ROW) if line.endswith(b"\n") else None
    except ValueError:
        return None


def rows_of(lines: Sequence[bytes]) -> Sequence[Row | None]:
    """`row_of` each of the lines, in a fifth of the time where all of them are whole."""
    try:
        rows = from_json(b"[" + b",".join(lines) + b"]", allow_inf_nan=False)
        check(rows, ROWS)
    except ValueError:
        rows = []
    are_whole = len(rows) == len(lines) and {line[:1] + line[-2:] for line in lines} <= {b"{}\n"}
    return rows if are_whole else [*map(row_of, lines)]


def digest(lines: Iterable[bytes]) -> str:
    """What a checkpoint knows its rows by: any other bytes have another digest."""
    return hashlib.sha256(b"".join(lines)).hexdigest()


def last_row(folder: Path) -> Row | None:
    """The last complete row of metrics.jsonl; None if there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    return next(filter(None, map(row_of, reversed(lines))), None)


def row_number(folder: Path, number: int) -> Row | None:
    """The row in this line of metrics.jsonl, of which the first has number 1; None if there is no
    such line or it is not whole."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            lines = [*islice(file, number)]
    except OSError:
        return None
    return row_of(lines[-1]) if len(lines) == number else None


class Metrics:
    """The file as the process that holds the trial writes it; `close` it at the end.

    Each attempt replaces the file by a copy of the `lines` that it keeps, and appends to that copy,
    which it holds open. So the rows of a process that was taken over and does not know it yet go to
    a file that has no name any more. `permit` raises if another process holds the trial now.
    """

    def __init__(self, path: Path, lines: Iterable[bytes], permit: Callable[[], None]) -> None:
        self._path, self._permit = path, permit
        content = b"".join(lines)
        self._written = hashlib.sha256(content)
        self._file = self._publish(content)

    @property
    def digest(self) -> str:
        """`digest` of all lines so far."""
        return self._written.hexdigest()

    def append(self, row: Row) -> None:
        """Appends the row of one update."""
        self._permit()
        remaining = (json.dumps(row, allow_nan=False) + "\n").encode()
        self._written.update(remaining)
        while remaining:  # a disk that is nearly full takes a part
            remaining = remaining[self._file.write(remaining) :]

    def sync(self) -> None:
        """On return every row is on the disk, under the file's name.

        A process that was taken over while it replaced the file may have done so after this one:
        then the file is put in its place again.
        """
        self._permit()
        if not self._is_in_place():
            self._file.seek(0)
            content = self._file.read()
            self._file.close()
            self._file = self._publish(content)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def _publish(self, content: bytes) -> FileIO:
        with partial(self._path.parent, self._path.name) as (filled, file):
            file.write(content)
        opened = filled.open("a+b", buffering=0)
        try:
            publish(filled, self._path, self._permit)
        except BaseException:
            opened.close()
            raise
        return opened
