"""The rows of a folder's trials: from an index, or from their files where these changed.

The index is one file of a store. It is derived. A row that is missing, older than its trial's
files, damaged or made by other code is made from these again; of all others the two files are
looked at, not opened.
"""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet

from pipegap.analysis.table import points, rows, schema
from pipegap.analysis.table.rows import Row, row
from pipegap.trainer.base import build, former
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import identity, names
from pipegap.trainer.config.names import GROUPS, yamls
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import (
    CONFIG,
    MARKER,
    RESULT,
    Damaged,
    damage,
    read,
    recorded_id,
)

MADE_BY = b"made_by"
MAKERS = (
    *(rows, points, schema),
    *(build, former, identity, names, wellformed),
)
"""The modules that say what a row holds."""
NUM_THREADS = 16
"""Many, since the latency of a network file system dominates."""
BATCH = 256
"""Trials per task of a thread: on a local disk, one trial takes only microseconds."""
WORTH_WRITING = 0.01
"""The index is written again if more than this share of the trials is new or changed."""

FILES = {"config.json": CONFIG, "result.json": RESULT}
OF_TRIAL = ("config.json", MARKER, "metrics.jsonl", "result.json")
"""The files by which a folder is a trial's: the config is written before all others. A dangling
symbolic link under one of these names counts as the file."""
ABSENT, UNKNOWN = (-1, -1), (-2, -2)

_T = TypeVar("_T")


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


def read_trials(
    folder: Path, names: Sequence[str], path: Path | None, *, whole: bool
) -> tuple[dict[str, Row], list[Damaged]]:
    """Return the rows of the trials among the folders `names` of `folder`, by these names, and what
    is not what was written there.

    `path`: of the trials' index if `folder` is that of a store, where a trial's id is the name of
    its folder; else None, and of several folders of one trial the first counts. `whole`: whether
    `names` are all trials of the index, so that it may be written again. A trial whose result is
    damaged counts as unfinished; one whose config is damaged or missing has no row.
    """
    stamps = {name: stamp for name, stamp in _each(_stamp, folder, names) if stamp is not None}
    entries_before = (
        read_index(path, None if whole else names) if path is not None and stamps else {}
    )
    entries = {
        name: entry for name, entry in entries_before.items() if stamps.get(name) == entry.stamp
    }
    stale = [name for name in stamps if name not in entries]
    damaged: list[Damaged] = []
    without_result: dict[str, Entry] = {}
    for name, (trial_id, config, result, damages) in _each(_contents, folder, stale):
        damaged += damages
        if config:
            content = json.dumps(row(trial_id, config, result, stamps[name].result_ns))
            (without_result if damages else entries)[name] = Entry(stamps[name], content)
    if path is not None and whole and entries and len(stale) > WORTH_WRITING * len(stamps):
        write_index(path, entries)
    entries |= without_result
    names_there = [name for name in stamps if name in entries]
    # Parsed together, the rows share the strings of their keys.
    rows = json.loads(f"[{','.join(entries[name].row for name in names_there)}]")
    rows_by_name = dict(zip(names_there, rows, strict=True))
    copies = _copies(rows_by_name, by_name=path is not None)
    distinct_rows = {name: row for name, row in rows_by_name.items() if name not in copies}
    says = "is a copy of trial {}, or its folder under another name: move it away"
    damaged += [Damaged(folder / name, says.format(copies[name])) for name in copies]
    return distinct_rows, damaged


def _copies(rows: Mapping[str, Row], *, by_name: bool) -> dict[str, str]:
    """Return the names of folders that do not count → the trial of each.

    `by_name`: whether a trial's folder must have its name; else the first one counts.
    """
    first = {row["trial_id"]: name for name, row in reversed([*rows.items()])}
    return {
        name: row["trial_id"]
        for name, row in rows.items()
        if name != (row["trial_id"] if by_name else first[row["trial_id"]])
    }


def _each(
    look: Callable[[str], _T], folder: Path, names: Sequence[str]
) -> Iterator[tuple[str, _T]]:
    """Yield each name with what `look` says of its folder."""

    def look_at(batch: Sequence[str]) -> list[_T]:
        return [look(f"{folder}/{name}") for name in batch]

    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for batch, results in zip(batches, pool.map(look_at, batches), strict=True):
            yield from zip(batch, results, strict=True)


def _stamp(folder: str) -> Stamp | None:
    """Return the stamp of a trial's files; None if there is no trial.

    A process that has just claimed a trial, or was killed then, has written none of OF_TRIAL: there
    is no trial yet.
    """
    config, result = (_looked_at(f"{folder}/{file}") for file in FILES)
    if config == ABSENT and not any(os.path.lexists(f"{folder}/{file}") for file in OF_TRIAL):
        return None
    return Stamp(*config, *result)


def _looked_at(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError:
        return UNKNOWN
    return status.st_mtime_ns, status.st_size


def _contents(folder: str) -> tuple[str, Row, Row, list[Damaged]]:
    """Return id, config, result and what is wrong with them; a missing or damaged file is empty.

    A missing config is wrong, a missing result is not. The id is that of the marker, or the name of
    the folder: a result says it again.
    """
    contents: list[Row] = []
    damaged = []
    for path, form in ((Path(folder, file), form) for file, form in FILES.items()):
        try:
            contents.append(read(path, form))
        except (Damaged, OSError) as error:
            contents.append({})
            if not isinstance(error, FileNotFoundError) or form is CONFIG:
                damaged.append(damage(path, error))
    config, result = contents
    trial_id = None
    try:
        trial_id = None if result else recorded_id(Path(folder))
    except (Damaged, OSError) as error:
        damaged.append(damage(Path(folder, MARKER), error))
    return trial_id or Path(folder).name, config, result, damaged


def index_path(store: Path) -> Path:
    """Return where the index of a store lies."""
    return store / ".index" / "trials.parquet"


def read_index(path: Path, names: Collection[str] | None = None) -> dict[str, Entry]:
    """Return entries by the names of the trials' folders, all or those in `names`.

    Empty if other code wrote the index, or not whole, or if there is none.
    """
    try:
        if parquet.read_schema(path).metadata.get(MADE_BY) != _made_by():
            return {}
        filters = None if names is None else [("name", "in", [*names])]
        table = parquet.read_table(path, filters=filters, page_checksum_verification=True)
        columns = [table.column(name).to_pylist() for name in ("name", *Stamp._fields, "row")]
    except (OSError, ValueError, LookupError, AttributeError, pa.ArrowException):
        return {}
    return {name: Entry(Stamp(*stamp), row) for name, *stamp, row in zip(*columns, strict=True)}


def write_index(path: Path, entries: Mapping[str, Entry]) -> None:
    """Replace the index as a whole, so that it can be read meanwhile and the last of several
    writers wins; do nothing where the store cannot be written."""
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
    """Return a digest of the code that makes rows, of the choices that name trials, and of keys."""
    sources = "".join(inspect.getsource(module) for module in MAKERS)
    files = [CONF / "config.yaml", *(path for group in GROUPS for path in yamls(group))]
    sources += "".join(path.name + path.read_text("utf-8") for path in files)
    return hashlib.sha256(sources.encode()).hexdigest().encode()
