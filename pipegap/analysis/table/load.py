"""A results folder, or a CSV that a report published, → one tidy table, with one row per trial."""

import csv
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from pipegap.analysis.table.index import index_path, read_trials
from pipegap.analysis.table.points import VERSIONS, group_of, with_one_name
from pipegap.analysis.table.rows import Row
from pipegap.analysis.table.schema import OF_ARM, TRIAL
from pipegap.trainer.base.errors import BadInput, first_line, short
from pipegap.trainer.base.former import YOUNGER
from pipegap.trainer.base.status import ENDED, Status
from pipegap.trainer.folder.wellformed import in_a_line

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
    folder; columns: `schema.TRIAL`.

    `results` may also be a CSV that a report wrote (`trials.csv`), which has no curves.
    `trial_ids`: only those in folders of these names. Warns of damaged files: the trial counts as
    unfinished, or is left out if its config is damaged; `stacklevel`: whose line that names, 2 the
    caller's. Raises BadInput if there is no such folder or CSV.
    """
    path = Path(results)
    if path.suffix == ".csv" and path.is_file():
        rows = _read_published(path)
        rows = [row for row in rows if trial_ids is None or row["trial_id"] in trial_ids]
    else:
        rows = _of_folders(path, trial_ids, stacklevel + 1)
    names = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    if rows:
        columns[PATH] = _paths(rows)
    return _with_short_arms(with_one_name(pd.DataFrame(columns)))


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


def _paths(rows: Sequence[Row]) -> pd.Series:
    """Return where each trial's data lies; of data without a path its name, as of published data:
    `data` of one's own may be made of other keys."""
    return _column(PATH, [row.get(PATH) or row["data"] for row in rows])


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
        return results / "trials", sorted(os.listdir(results / "trials")), index_path(results)
    return results, sorted(os.listdir(results)), None


def _column(name: str, values: Sequence[Any]) -> pd.Series:
    return pd.Series(values, dtype=TRIAL[name][0] if name in TRIAL else _dtype(values))


def _dtype(values: Sequence[Any]) -> str:
    """Return the dtype of a column outside the schema: integers stay so beside missing values."""
    kinds = {type(value) for value in values if value is not None}
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
    with path.open(newline="", encoding="utf-8-sig") as file:
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
        return pd.Timestamp(text).value
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
    is_long = isinstance(value, int) and not abs(value) < 2**63
    return not is_long and not (isinstance(value, float) and not math.isfinite(value))
