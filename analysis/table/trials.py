"""The trials of a folder: their rows from the index, or from their files where these changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from analysis import index
from analysis.index import Entry, Stamp
from analysis.rows import Row, row

NUM_THREADS = 16
"""A file system across a network answers many questions in the time of one."""
BATCH = 256
"""Trials that a thread takes at once: on a local disk a look at one takes microseconds."""
WORTH_WRITING = 0.01
"""Share of the trials that must be new or changed before the index is written again."""

FILES = ("config.json", "result.json")
ABSENT = (-1, -1)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Trials:
    """Rows by the names of their folders, and the files that are not whole JSON."""

    rows: dict[str, Row] = field(default_factory=dict)
    broken: list[Path] = field(default_factory=list)


def read_trials(folder: Path, names: Sequence[str], path: Path | None, *, whole: bool) -> Trials:
    """The trials among the folders `names` of `folder`: those that have a config.

    `path`: of their index; None where they have none. `whole`: these are all that it shall hold. A
    trial whose result is not whole is unfinished; one whose config is not has no row.
    """
    stamps = {name: stamp for name, stamp in _each(_stamp, folder, names) if stamp is not None}
    known = index.read(path, None if whole else names) if path is not None and stamps else {}
    entries = {
        name: known[name]
        for name, stamp in stamps.items()
        if name in known and known[name].stamp == stamp
    }
    stale = [name for name in stamps if name not in entries]
    found = Trials()
    damaged: dict[str, Entry] = {}
    for name, (config, result) in _each(_contents, folder, stale):
        broken = [file for file, of in zip(FILES, (config, result), strict=True) if of is None]
        found.broken.extend(folder / name / file for file in broken)
        if config:
            made = _entry(name, config, result or {}, stamps[name])
            (damaged if broken else entries)[name] = made
    if path is not None and whole and entries and len(stale) > WORTH_WRITING * len(stamps):
        index.write(path, entries)
    entries |= damaged
    there = [name for name in stamps if name in entries]
    # Read at once, the rows share the names of their columns.
    rows = json.loads(f"[{','.join(entries[name].row for name in there)}]")
    found.rows.update(zip(there, rows, strict=True))
    return found


def _entry(name: str, config: Row, result: Row, stamp: Stamp) -> Entry:
    return Entry(stamp, json.dumps(row(name, config, result, stamp.result_ns)))


def _each(
    look: Callable[[str], _T], folder: Path, names: Sequence[str]
) -> Iterator[tuple[str, _T]]:
    """Each name with what `look` says of its folder."""

    def look_at(batch: Sequence[str]) -> list[_T]:
        return [look(f"{folder}/{name}") for name in batch]

    batches = [names[start : start + BATCH] for start in range(0, len(names), BATCH)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for batch, seen in zip(batches, pool.map(look_at, batches), strict=True):
            yield from zip(batch, seen, strict=True)


def _stamp(folder: str) -> Stamp | None:
    """None if it has no config, and so is no trial."""
    config, result = (_looked_at(f"{folder}/{file}") for file in FILES)
    return None if config == ABSENT else Stamp(*config, *result)


def _looked_at(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    return seen.st_mtime_ns, seen.st_size


def _contents(folder: str) -> tuple[Row | None, Row | None]:
    """Of config and result: empty of a file that is not there, None of one that is not whole."""
    config, result = (read_json(Path(folder, file)) for file in FILES)
    return config, result


def read_json(path: Path) -> Row | None:
    """The object in a file; empty if there is no file, None if it is not one, or not whole."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
