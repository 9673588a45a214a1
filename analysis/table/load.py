"""A results folder, or a published CSV, → one tidy table, with one row per trial."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.objects.places import pulled
from analysis.table.index import index_path
from analysis.table.points import with_one_name
from analysis.table.published import is_published, read_published
from analysis.table.rows import Row
from analysis.table.schema import TRIAL
from analysis.table.text import in_a_line
from analysis.table.trials import read_if_there, read_trials
from trainer.base.errors import BadInput
from trainer.base.places import is_url
from trainer.folder.metrics import row_of
from trainer.folder.wellformed import CONFIG


class DamagedRows(UserWarning):
    """Lines of a metrics.jsonl are damaged, so that curves lack their updates; or answers are."""


def load(results_dir: str | Path, trial_ids: Collection[str] | None = None) -> pd.DataFrame:
    """Every trial under `results_dir`, its `trials/` folder, or in it; columns: `schema.TRIAL`.

    `results_dir` may also be the URL of an object store, of which what changed is fetched first, or
    a CSV that a report wrote (`trials.csv`), which has no curves. `trial_ids`: only those in
    folders of these names. Warns of damaged files: the trial counts as unfinished, or is left out
    if its config is damaged. Raises BadInput if there is no such folder or CSV, Unavailable if the
    object store does not answer.
    """
    path = pulled(results_dir) if is_url(str(results_dir)) else Path(results_dir)
    if is_published(path):
        rows = [
            row for row in read_published(path) if trial_ids is None or row["trial_id"] in trial_ids
        ]
    else:
        rows = _of_folders(path, trial_ids)
    columns = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    found = {name: _column(name, [row.get(name) for row in rows]) for name in columns}
    return with_one_name(pd.DataFrame(found))


def _of_folders(results: Path, trial_ids: Collection[str] | None) -> list[Row]:
    folder, names, index = _places(results)
    if trial_ids is not None:
        names = sorted({*names} & {*trial_ids})
    trials = read_trials(folder, names, index, whole=trial_ids is None)
    if trials.damaged:
        warnings.warn(in_a_line(trials.damaged, "run their trials again"), stacklevel=3)
    return [{**row, "folder": str(folder / name)} for name, row in trials.rows.items()]


def config_of(folder: str) -> Row:
    """One trial's resolved config, in which 1 is not 1.0 as it is in a column of floats."""
    return read_if_there(Path(folder) / "config.json", CONFIG)


def validation_losses(folder: str) -> pd.DataFrame:
    """Columns `update` (0-based) and `val_loss` of one trial; a loss that is not finite is NaN."""
    return _series(folder, "val_loss")


def training_losses(folder: str) -> pd.DataFrame:
    """Columns `update` and `train_loss`, likewise."""
    return _series(folder, "train_loss")


def diagnostics(folder: str, group: str, name: str) -> pd.DataFrame:
    """Columns `update` and `name`: a diagnostic of a group of parameters, where it was measured."""
    rows = [
        {"update": row["update"], name: row["diagnostics"].get(group, {}).get(name)}
        for row in metrics(folder, "diagnostics")
    ]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def _series(folder: str, name: str) -> pd.DataFrame:
    rows = [*metrics(folder, name)]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def metrics(folder: str, key: str) -> Iterator[Row]:
    """The rows of one trial's metrics.jsonl that have `key`, by update; none if there is no such
    file. Warns of lines that are damaged: they are left out."""
    path, named = Path(folder) / "metrics.jsonl", f'"{key}"'.encode()
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # a running trial may be writing it
    rows = [row_of(line) for line in lines if named in line or not _looks_whole(line)]
    found = {row["update"]: row for row in rows if row is not None}
    if num_damaged := rows.count(None):
        lost = f"{path} has {num_damaged} damaged lines, which are left out"
        warnings.warn(f"{lost}: run its trial again", DamagedRows, stacklevel=2)
    return (found[update] for update in sorted(found) if key in found[update])


def _looks_whole(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}\n")


def _places(results: Path) -> tuple[Path, list[str], Path | None]:
    """The folder that holds the trials' folders, their names, and the index if it is a store."""
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
    """The dtype of a column outside the schema: integers stay integers beside missing values."""
    kinds = {type(value) for value in values if value is not None}
    for allowed, dtype in (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64")):
        if kinds and kinds <= allowed:
            return dtype
    return "string" if kinds == {str} else "object"
