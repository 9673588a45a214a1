"""A results folder → one tidy table, a row a trial."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.index import index_path
from analysis.notes import some
from analysis.rows import Row
from analysis.schema import TRIAL
from analysis.trials import read_json, read_trials
from trainer.errors import BadInput


def load(results_dir: str | Path, trial_ids: Collection[str] | None = None) -> pd.DataFrame:
    """Every trial under `results_dir`, its `trials/` folder, or in it; columns: `schema.TRIAL`.

    `trial_ids`: only those in folders of these names. Warns of files that are not whole JSON: the
    trial counts as unfinished, or is left out if its config is such a file. Raises BadInput if
    there is no folder `results_dir`.
    """
    folder, names, index = _places(Path(results_dir))
    if trial_ids is not None:
        names = sorted({*names} & {*trial_ids})
    trials = read_trials(folder, names, index, whole=trial_ids is None)
    if trials.broken:
        warnings.warn(f"not whole, and so not counted: {some(trials.broken)}", stacklevel=2)
    rows = [{**row, "folder": str(folder / name)} for name, row in trials.rows.items()]
    columns = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    return pd.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in columns})


def config_of(folder: str) -> Row:
    """One trial's config as it was resolved: there 1 is not 1.0."""
    return read_json(Path(folder) / "config.json") or {}


def validation_losses(folder: str) -> pd.DataFrame:
    """Columns `update` (0-based) and `val_loss` of one trial; a loss that is not finite is NaN."""
    return _series(folder, "val_loss")


def training_losses(folder: str) -> pd.DataFrame:
    """Columns `update` and `train_loss`, likewise."""
    return _series(folder, "train_loss")


def diagnostics(folder: str, group: str, name: str) -> pd.DataFrame:
    """Columns `update` and `name`: a diagnostic of a group of parameters where it was measured."""
    rows = [
        {"update": row["update"], name: row["diagnostics"].get(group, {}).get(name)}
        for row in metrics(folder, "diagnostics")
    ]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def _series(folder: str, name: str) -> pd.DataFrame:
    rows = [*metrics(folder, name)]
    return pd.DataFrame(rows, columns=["update", name]).astype({name: float})


def metrics(folder: str, key: str) -> Iterator[Row]:
    """The rows of one trial's metrics.jsonl that have `key`; none if there is no such file."""
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        # A running trial may be writing its last line.
        if f'"{key}"' in line and line.endswith("\n"):
            row: Row = json.loads(line)
            yield row


def _places(results: Path) -> tuple[Path, list[str], Path | None]:
    """The folder of the trials' folders, their names, and the index, which a store has."""
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
    """An integer stays one beside missing values; a share beside a count is a float."""
    kinds = {type(value) for value in values if value is not None}
    for allowed, dtype in (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64")):
        if kinds and kinds <= allowed:
            return dtype
    return "string" if kinds == {str} else "object"
