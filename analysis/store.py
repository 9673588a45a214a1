"""A results folder → one tidy table, a row a trial."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.arms import arm, base_arm, family
from analysis.points import flatten, point
from analysis.schema import TRIAL
from trainer.build import label
from trainer.errors import BadInput

Row = dict[str, Any]


def load(results_dir: str | Path) -> pd.DataFrame:
    """Every trial under `results_dir`, its `trials/` folder, or in it; columns: `schema.TRIAL`.

    Raises BadInput if there is no such folder, or if a file in it is not JSON.
    """
    rows = [_row(folder) for folder in _folders(Path(results_dir))]
    names = dict.fromkeys([*TRIAL, *(name for row in rows for name in row)])
    return pd.DataFrame({name: _column(name, [row.get(name) for row in rows]) for name in names})


def config_of(folder: str) -> Row:
    """One trial's config as it was resolved: there 1 is not 1.0."""
    return _read(Path(folder) / "config.json")


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


def _folders(results: Path) -> Iterator[Path]:
    if not results.is_dir():
        raise BadInput("results", results, "must be a folder that holds trials (no such folder)")
    if (results / "config.json").exists():
        yield results
        return
    trials = results / "trials"
    for folder in sorted((trials if trials.is_dir() else results).iterdir()):
        if (folder / "config.json").exists():
            yield folder


def _row(folder: Path) -> Row:
    config, result = _read(folder / "config.json"), _read(folder / "result.json")
    finished = folder / "result.json"
    flat = dict(flatten(config))
    known = {key: value for key, value in result.items() if key in TRIAL}
    return {
        "trial_id": folder.name,
        "status": "unfinished",
        "num_updates_asked": config["num_updates"],
        **{key: value for key, value in flat.items() if not key.endswith("._target_")},
        **{key: label(node) for key, node in config.items() if _is_choice(node)},
        **known,
        **dict(flatten(result.get("versions", {}), "versions.")),
        "arm": arm(config, result),
        "base_arm": base_arm(config, result),
        "family": family(config, result),
        "point": point(flat, result.get("data_hash")),
        "finished_at": finished.stat().st_mtime_ns if result else None,
        "folder": str(folder),
    }


def _is_choice(node: object) -> bool:
    return isinstance(node, dict) and "_target_" in node


def _read(path: Path) -> Row:
    """The file's content; nothing if it does not exist."""
    try:
        content: Row = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadInput("results", path, f"must be JSON: move that trial away ({error})") from None
    return content


def _column(name: str, values: Sequence[Any]) -> pd.Series:
    return pd.Series(values, dtype=TRIAL[name][0] if name in TRIAL else _dtype(values))


def _dtype(values: Sequence[Any]) -> str:
    """An integer stays one beside missing values; a share beside a count is a float."""
    kinds = {type(value) for value in values if value is not None}
    for allowed, dtype in (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64")):
        if kinds and kinds <= allowed:
            return dtype
    return "string" if kinds == {str} else "object"
