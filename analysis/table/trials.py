"""The rows of a folder's trials: from the index, or from their files where these changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from analysis.table import index
from analysis.table.index import Entry, Stamp
from analysis.table.rows import Row, row
from trainer.folder.wellformed import CONFIG, RESULT, Damaged, Form, damage, read

NUM_THREADS = 16
"""Many, since the latency of a network file system dominates."""
BATCH = 256
"""Trials per task of a thread: on a local disk, one trial takes only microseconds."""
WORTH_WRITING = 0.01
"""The index is written again if more than this share of the trials is new or changed."""

FILES = {"config.json": CONFIG, "result.json": RESULT}
OF_TRIAL = ("config.json", "trial_id", "metrics.jsonl", "result.json")
"""None of them is in a folder before a trial's config is; a link that leads nowhere counts."""
ABSENT, UNKNOWN = (-1, -1), (-2, -2)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Trials:
    """Rows by the name of the trial's folder, and what is wrong with the damaged files."""

    rows: dict[str, Row] = field(default_factory=dict)
    damaged: list[Damaged] = field(default_factory=list)


def read_trials(folder: Path, names: Sequence[str], path: Path | None, *, whole: bool) -> Trials:
    """The trials among the folders `names` of `folder`.

    `path`: of their index, or None. `whole`: whether they are all trials of the index, so that it
    may be written again. A trial whose result is damaged counts as unfinished; one whose config is
    damaged or missing has no row.
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
    without_result: dict[str, Entry] = {}
    for name, (config, result, damaged) in _each(_contents, folder, stale):
        found.damaged.extend(damaged)
        if config:
            made = _entry(name, config, result, stamps[name])
            (without_result if damaged else entries)[name] = made
    if path is not None and whole and entries and len(stale) > WORTH_WRITING * len(stamps):
        index.write(path, entries)
    entries |= without_result
    there = [name for name in stamps if name in entries]
    # Parsed together, the rows share the strings of their keys.
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
    """The stamp of a trial's files; None if there is no trial.

    A process that has just claimed a trial, or was killed then, has written none of OF_TRIAL: there
    is no trial yet.
    """
    config, result = (_looked_at(f"{folder}/{file}") for file in FILES)
    if config == ABSENT and not any(os.path.lexists(f"{folder}/{file}") for file in OF_TRIAL):
        return None
    return Stamp(*config, *result)


def _looked_at(path: str) -> tuple[int, int]:
    try:
        seen = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError:
        return UNKNOWN
    return seen.st_mtime_ns, seen.st_size


def _contents(folder: str) -> tuple[Row, Row, list[Damaged]]:
    """Config, result and what is wrong with them; a file that is missing or damaged is empty.

    A missing config is wrong, a missing result is not."""
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
    return config, result, damaged


def read_if_there(path: Path, form: Form) -> Row:
    """The JSON object in a file; empty if there is no file. Raises Damaged."""
    try:
        return read(path, form)
    except FileNotFoundError:
        return {}
