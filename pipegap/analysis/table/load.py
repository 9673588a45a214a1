"""A results folder, or a published CSV, → one tidy table with one row per trial; the index that
makes it quick.
"""

import csv
import hashlib
import inspect
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from pipegap.analysis.table import points, rows, schema
from pipegap.analysis.table.points import VERSIONS, group_of, ranked, with_one_name
from pipegap.analysis.table.rows import Row, row
from pipegap.analysis.table.schema import OF_ARM, TRIAL
from pipegap.trainer.base import build, former
from pipegap.trainer.base.errors import ENDED, BadInput, Status, first_line, short
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.places import CONF
from pipegap.trainer.config import identity
from pipegap.trainer.config.identity import GROUPS, yamls
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import (
    CONFIG,
    MARKER,
    RESULT_FORM,
    Damaged,
    damage,
    in_a_line,
    read,
    recorded_id,
)

# The rows of a folder's trials: from an index, or from their files where these changed.
#
# The index is one file of a store. It is derived. A row that is missing, older than its trial's
# files, damaged or made by other code is made from these again; of all others the two files are
# looked at, not opened.

MADE_BY = b"made_by"
BATCH = 256
"""Trials per task of a thread: on a local disk, one trial takes only microseconds."""

FILES = {"config.json": CONFIG, "result.json": RESULT_FORM}
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
    """Return the rows of the trials among the folders `names` of `folder`, by these names, and the
    files that are damaged.

    `path`: the file of the index if `folder` is that of a store, in which a trial's folder has the
    trial's id as its name; else None, and of several folders of one trial the first counts.
    `whole`: whether `names` are all trials of the index, so that it may be written again. A trial
    whose result is damaged counts as unfinished; one whose config is damaged or missing has no row.
    """
    stamps = {name: stamp for name, stamp in _each(_stamp, folder, names) if stamp is not None}
    entries_before = (
        read_index(path, None if whole else names) if path is not None and stamps else {}
    )
    entries = {  # rows of trials that have not changed since the index was written
        name: entry for name, entry in entries_before.items() if stamps.get(name) == entry.stamp
    }
    stale = [name for name in stamps if name not in entries]
    damaged: list[Damaged] = []
    without_result: dict[str, Entry] = {}
    for name, (trial_id, config, result, damages) in _each(_contents, folder, stale):
        damaged += damages
        if config:
            content = json.dumps(row(trial_id, config, result, stamps[name].result_ns))
            # Not in the index: what is damaged is read, and warned of, each time.
            (without_result if damages else entries)[name] = Entry(stamps[name], content)
    # The index is written again if more than one trial in a hundred is new or changed.
    if path is not None and whole and entries and len(stale) > 0.01 * len(stamps):
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
    first = {row["trial_id"]: name for name, row in reversed([*rows.items()])}  # the last one wins
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
    # Many threads, since the latency of a network file system dominates.
    with ThreadPoolExecutor(16) as pool:
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
    except OSError:  # as of a folder that this user may not enter: there is a trial, unread
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
    if not result:
        try:
            trial_id = recorded_id(Path(folder))
        except (Damaged, OSError) as error:
            damaged.append(damage(Path(folder, MARKER), error))
    return trial_id or Path(folder).name, config, result, damaged


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
    partial = path.with_name(f".{uuid4().hex}.partial")  # a name of its own: several may write
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
    makers = (rows, points, schema, build, former, identity, wellformed)
    sources = "".join(map(inspect.getsource, makers))
    # The YAMLs say which values are usual, and so what is left out of an arm's name.
    files = [CONF / "config.yaml", *(path for group in GROUPS for path in yamls(group))]
    sources += "".join(path.name + path.read_text("utf-8") for path in files)
    return hashlib.sha256(sources.encode()).hexdigest().encode()


# The table itself, from those rows or from a CSV that a report published.

PATH = "data.path"
ARMS = ("arm", "base_arm", "family", "arm_without_cooldown")
"""Columns that hold keys of arms."""
DIGESTS = re.compile("(~[0-9a-f]+)+$")
"""The end of the key of an arm with code of one's own (`rows.arm`)."""
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
NEEDED = (
    *("trial_id", "status", "model", "data", "optimizer", "arm", *OF_ARM, "delay", "point", "seed"),
    *("final_val_loss", "num_updates", "num_updates_asked", "num_parameters", *OF_EVERY_TRIAL),
)
"""Columns that comparisons compute with. Any other may be missing in a published CSV, which a
report of older code wrote: its values are missing then."""
STATUSES = (*ENDED, Status.UNFINISHED)


def load(
    results: str | Path, trial_ids: Collection[str] | None = None, *, stacklevel: int = 2
) -> pd.DataFrame:
    """Return one row per trial in the folder `results`, in its folder `trials`, or of one trial's
    folder, optimizer by optimizer, the one of the lowest loss first (`points.by_loss`); columns:
    `schema.TRIAL`.

    `results` may also be a CSV that a report wrote (`trials.csv`), which has no curves.
    `trial_ids`: only trials in folders of these names are returned. Warns of damaged files: the
    trial counts as unfinished, or is left out if its config is damaged. `stacklevel` is that of
    these warnings: with 2 they name the caller's line. Raises BadInput if there is no such folder
    or CSV.
    """
    path = Path(results)
    if path.suffix == ".csv" and path.is_file():
        rows = _read_published(path)
        rows = [row for row in rows if trial_ids is None or row["trial_id"] in trial_ids]
    else:
        rows = _of_folders(path, trial_ids, stacklevel + 1)
    # Columns of the schema first, then those of any trial in the order of their appearance.
    names = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    if rows:
        # Published data have no path, and data of one's own may be made of other keys.
        columns[PATH] = _column(PATH, [row.get(PATH) or row["data"] for row in rows])
    trials = _with_short_arms(with_one_name(pd.DataFrame(columns)))
    return ranked(trials).reset_index(drop=True)


def _with_short_arms(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the table with keys of arms without the digests of their sources, where only one
    source of an arm has trials."""
    keys = {str(key) for name in ARMS for key in trials[name].dropna().unique()}
    with_digests = [key for key in keys if DIGESTS.search(key)]
    num_sources = Counter(DIGESTS.sub("", key) for key in with_digests)
    short = {key: name for key in with_digests if num_sources[name := DIGESTS.sub("", key)] == 1}
    if not short:
        return trials
    return trials.assign(**{name: trials[name].replace(short) for name in ARMS})


def _of_folders(results: Path, trial_ids: Collection[str] | None, stacklevel: int) -> list[Row]:
    folder, names, index = _where(results)
    if trial_ids is not None:
        names = sorted({*names} & {*trial_ids})
    rows, damaged = read_trials(folder, names, index, whole=trial_ids is None)
    if damaged:
        warnings.warn(in_a_line(damaged, "run their trials again"), stacklevel=stacklevel)
    return [{**row, "folder": str(folder / name)} for name, row in rows.items()]


def _where(results: Path) -> tuple[Path, list[str], Path | None]:
    """Return the folder of the trials' folders, their names, and the index if it is a store."""
    if not results.is_dir():
        raise BadInput("results", results, "must be a folder that holds trials (no such folder)")
    if (results / "config.json").exists():
        return results.parent, [results.name], None
    if (results / "trials").is_dir():
        index = results / ".index" / "trials.parquet"
        return results / "trials", sorted(os.listdir(results / "trials")), index
    return results, sorted(os.listdir(results)), None


def _column(name: str, values: Sequence[Any]) -> pd.Series:
    return pd.Series(values, dtype=TRIAL[name][0] if name in TRIAL else _dtype(values))


def _dtype(values: Sequence[Any]) -> str:
    """Return the dtype of a column outside the schema: integers stay so beside missing values."""
    kinds = {type(value) for value in values if value is not None}  # `type`: a bool is an int
    for allowed, dtype in (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64")):
        if kinds and kinds <= allowed:
            return dtype
    return "string" if kinds == {str} else "object"


def _read_published(path: Path) -> list[Row]:
    """Return one row per line, with the values that the table had; a missing value is None.

    There are no curves: `folder` names the line, and no such folder exists. Raises BadInput for a
    file that is no such table, naming line and column.
    """
    try:
        rows = [*_rows(path)]
    except (OSError, ValueError, csv.Error) as error:
        allowed = f"must be a trials.csv of a report ({first_line(error)})"
        raise BadInput("results", path, allowed) from None
    return [dict(YOUNGER) | row | {"folder": str(path / row["trial_id"])} for row in rows]


def _rows(path: Path) -> Iterator[Row]:
    """Yield the values of each line. Raises ValueError, csv.Error, OSError."""
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel writes a byte-order mark
        lines = csv.reader(file, strict=True)
        names = next(lines, [])
        if lacking := [name for name in NEEDED if name not in names]:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        if len({*names}) < len(names):
            raise ValueError("it has a column twice")
        ids_seen = set()
        for line in filter(None, lines):
            where = f"line {lines.line_num}"
            if len(line) != len(names):
                raise ValueError(f"{where} has {len(line)} of {len(names)} columns")
            row = {name: _value(name, text, where) for name, text in zip(names, line, strict=True)}
            if row["trial_id"] is None or row["trial_id"] in ids_seen:
                raise ValueError(f"{where} has the trial of another line, or none")
            ids_seen.add(row["trial_id"])
            yield row


def as_csv(trials: pd.DataFrame) -> str:
    """Return the table as a CSV that `load` reads as the same values.

    A text that would be read as something else, such as "1.10", is written as JSON writes it.
    """
    texts = {
        name: trials[name].astype(object).map(partial(_written, _dtype_of(name)))
        for name in map(str, trials)
        if trials[name].dtype in ("string", "object")
    }
    return trials.assign(**texts).to_csv(index=False)


def _written(dtype: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # A field of a CSV can hold the end of a line, and not every character that is not printed.
    is_read_as_it_is = value.replace("\n", "").isprintable() and _parsed(dtype, value) == value
    return value if is_read_as_it_is else json.dumps(value)


def _value(name: str, text: str, where: str) -> Any:
    """Return the value that `text` stands for in the column `name`; None if it is empty.

    Raises ValueError if no value of the column is written so.
    """
    try:
        value = _parsed(_dtype_of(name), text)
    except (ValueError, OverflowError):
        raise ValueError(f"{where} has {name}={short(text)}") from None
    if name == "status" and value not in STATUSES:
        raise ValueError(f"{where} has {name}={short(text)}")
    return value


def _dtype_of(name: str) -> str:
    """Return the dtype of a column whose values have one; the empty string of any other."""
    if group_of(name) == VERSIONS:
        return "string"
    return TRIAL[name][0] if name in TRIAL else NUMBERS.get(name, "")


def _parsed(dtype: str, text: str) -> Any:
    """Return the value in a column of this `dtype`, which is empty for those outside the schema.

    In these, a number is what is written as `as_csv` writes it: "1.10" and "58899e0" are texts.
    """
    if not text:
        return None
    if dtype.startswith("datetime"):
        return pd.Timestamp(text).value  # nanoseconds, as `rows.row` has them
    value: Any
    if text in WORDS and dtype != "string":
        value = WORDS[text]
    else:
        try:
            value = json.loads(text)
        except ValueError:
            value = text
    if dtype in KINDS:
        if type(value) not in KINDS[dtype] or not _is_finite(value):
            raise ValueError
        return value
    if isinstance(value, str) or (isinstance(value, bool) and text in WORDS):
        return value
    is_number = isinstance(value, int | float) and _is_finite(value) and str(value) == text
    return value if is_number and dtype != "string" else text


def _is_finite(value: object) -> bool:
    """Return whether a column can hold the value, if it is a number."""
    is_long = isinstance(value, int) and not abs(value) < 2**63  # beyond int64
    return not is_long and not (isinstance(value, float) and not math.isfinite(value))
