"""An index of a store: the rows of its trials in one file, so that they need not be made again.

It is derived. A row that is missing, older than its trial's files, damaged or made by other code is
made from these again; of all others the two files are looked at, not opened.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

import analysis.table.arms
import analysis.table.points
import analysis.table.rows
import analysis.table.schema
import trainer.base.build
import trainer.config.identity
import trainer.config.names
import trainer.folder.wellformed
from trainer.config.names import GROUPS, yamls

MADE_BY = b"made_by"
MAKERS = (
    *(analysis.table.rows, analysis.table.arms, analysis.table.points, analysis.table.schema),
    *(trainer.base.build, trainer.config.identity, trainer.config.names),
    trainer.folder.wellformed,
)
"""The modules that say what a row holds."""


class Stamp(NamedTuple):
    """What changes when a trial's files do; a result that is not there has -1."""

    config_ns: int
    config_bytes: int
    result_ns: int
    result_bytes: int


class Entry(NamedTuple):
    """A row as JSON, which tells 1, 1.0 and true apart, and the files that it was made of."""

    stamp: Stamp
    row: str


def index_path(store: Path) -> Path:
    """Where the index of a store lies."""
    return store / ".index" / "trials.parquet"


def read(path: Path, names: Collection[str] | None = None) -> dict[str, Entry]:
    """Entries by the names of the trials' folders, or of `names` alone; none of an index that this
    code did not write, or not whole."""
    try:
        if parquet.read_schema(path).metadata.get(MADE_BY) != _made_by():
            return {}
        filters = None if names is None else [("name", "in", [*names])]
        table = parquet.read_table(path, filters=filters, page_checksum_verification=True)
        columns = [table.column(name).to_pylist() for name in ("name", *Stamp._fields, "row")]
    except (OSError, ValueError, LookupError, AttributeError, pa.ArrowException):
        return {}
    return {name: Entry(Stamp(*stamp), row) for name, *stamp, row in zip(*columns, strict=True)}


def write(path: Path, entries: Mapping[str, Entry]) -> None:
    """Replaces the index as a whole, so that it can be read meanwhile and the last of several
    writers wins; does nothing where the store cannot be written."""
    stamps = zip(*(entry.stamp for entry in entries.values()), strict=True)
    columns = {"name": [*entries], **dict(zip(Stamp._fields, map(list, stamps), strict=True))}
    table = pa.table({**columns, "row": [entry.row for entry in entries.values()]})
    partial = path.with_name(f".{uuid4().hex}.partial")
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        try:
            parquet.write_table(
                table.replace_schema_metadata({MADE_BY: _made_by()}),
                partial,
                compression="zstd",
                write_page_checksum=True,
            )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@cache
def _made_by() -> bytes:
    """A digest of the code that makes rows, and of the choices that give trials their names."""
    sources = "".join(inspect.getsource(module) for module in MAKERS)
    sources += "".join(path.name + path.read_text() for group in GROUPS for path in yamls(group))
    return hashlib.sha256(sources.encode()).hexdigest().encode()
