"""A results folder, or a CSV that a report published, → one tidy table, with one row per trial."""

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.table.index import index_path, read_trials
from analysis.table.points import with_one_name
from analysis.table.published import is_published, read_published
from analysis.table.rows import Row
from analysis.table.schema import TRIAL
from analysis.table.text import in_a_line, out_of_place
from trainer.base.errors import BadInput
from trainer.folder.files import Damaged
from trainer.folder.metrics import row_of
from trainer.folder.wellformed import CONFIG, read


class DamagedRows(UserWarning):
    """Lines of a metrics.jsonl are damaged, so that curves lack their updates; or answers are."""


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
    if is_published(path):
        rows = read_published(path)
        rows = [row for row in rows if trial_ids is None or row["trial_id"] in trial_ids]
    else:
        rows = _of_folders(path, trial_ids, stacklevel + 1)
    names = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    return with_one_name(pd.DataFrame(columns))


def _of_folders(results: Path, trial_ids: Collection[str] | None, stacklevel: int) -> list[Row]:
    folder, names, index = _places(results)
    if trial_ids is not None:
        names = sorted({*names} & {*trial_ids})
    trials = read_trials(folder, names, index, whole=trial_ids is None)
    if trials.damaged:
        warnings.warn(in_a_line(trials.damaged, "run their trials again"), stacklevel=stacklevel)
    others = strangers(folder) if index is not None and trial_ids is None else []
    if misplaced := [*trials.misplaced, *others]:
        warnings.warn(out_of_place(misplaced), stacklevel=stacklevel)
    return [{**row, "folder": str(folder / name)} for name, row in trials.rows.items()]


def strangers(trials: Path) -> list[Damaged]:
    """Return what is no folder among the trials of a store, but for hidden files."""
    shown = (entry for entry in os.scandir(trials) if not entry.name.startswith("."))
    names = sorted(entry.name for entry in shown if not entry.is_dir())
    return [Damaged(trials / name, "is no trial's folder: move it away") for name in names]


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


def diagnostics(folder: str, group: str, name: str) -> pd.DataFrame:
    """Return columns `update` and `name`, a diagnostic of a group of parameters, as measured."""
    rows = [
        {"update": row["update"], name: row["diagnostics"].get(group, {}).get(name)}
        for row in metrics(folder, "diagnostics")
    ]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def _series(folder: str, name: str) -> pd.DataFrame:
    rows = [*metrics(folder, name)]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def metrics(folder: str, key: str) -> Iterator[Row]:
    """Return the rows of one trial's metrics.jsonl that have `key`, by update.

    No row if there is no such file. Warns of lines that are damaged, which are left out.
    """
    path, quoted = Path(folder) / "metrics.jsonl", f'"{key}"'.encode()
    content = path.read_bytes() if path.is_file() else b""
    if quoted not in content and _are_whole(content):
        return iter(())
    lines = content.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # a running trial may be writing it
    rows = [row_of(line) for line in lines if quoted in line or not _looks_whole(line)]
    by_update = {row["update"]: row for row in rows if row is not None}
    if num_damaged := rows.count(None):
        lost = f"{path} has {num_damaged} damaged lines, which are left out"
        warnings.warn(f"{lost}: run its trial again", DamagedRows, stacklevel=2)
    return (by_update[update] for update in sorted(by_update) if key in by_update[update])


def _are_whole(content: bytes) -> bool:
    """Return whether `_looks_whole` of every line, in a tenth of the time."""
    inner = content.count(b"\n") - 1
    return _looks_whole(content) and content.count(b"}\n{") == inner and b"\r" not in content


def _looks_whole(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}\n")


def _places(results: Path) -> tuple[Path, list[str], Path | None]:
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
