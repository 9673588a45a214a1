"""A results folder → one tidy DataFrame, a row a trial.

Columns: every key of the config, dotted (`optimizer.lr`); the labels of its choices (`optimizer`,
`pipeline`, `correction`, `lr_schedule`, `model`, `data`); `arm`, `plain_arm`, `point` and `seed`;
every key of result.json (losses in nats a token, times in seconds, memory in bytes); `status`,
which is `unfinished` without a result; `folder`; `finished`, seconds since 1970.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.arms import arm, plain_arm, point
from trainer.build import label

Row = dict[str, Any]
FLOATS = ("final_val_loss", "tokens_per_second", "wall_seconds", "epochs", "optimizer.lr")
COLUMNS = ("trial_id", "status", "arm", "plain_arm", "point", "seed", "optimizer", *FLOATS)


def load(results: str | Path) -> pd.DataFrame:
    """All trials below `results` (a store, its trials/, or one trial's folder).

    Raises FileNotFoundError if there is no such folder; an empty one gives an empty table.
    """
    root = Path(results)
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder")
    rows = [_row(folder) for folder in _folders(root)]
    frame = pd.DataFrame(rows, columns=None if rows else list(COLUMNS))
    for column in FLOATS:
        frame[column] = pd.to_numeric(frame[column]) if column in frame else float("nan")
    return frame


def metrics(folder: str | Path) -> pd.DataFrame:
    """A trial's metrics.jsonl: one row an update."""
    path = Path(folder) / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return pd.DataFrame([json.loads(line) for line in lines if line.endswith("}")])


def _folders(root: Path) -> Iterator[Path]:
    candidates = [root, *sorted(root.glob("*")), *sorted(root.glob("trials/*"))]
    return (folder for folder in candidates if (folder / "config.json").exists())


def _row(folder: Path) -> Row:
    config = json.loads((folder / "config.json").read_text())
    path = folder / "result.json"
    result: Row = json.loads(path.read_text()) if path.exists() else {"status": "unfinished"}
    delays = result.get("delays")
    choices = {key: label(node) for key, node in config.items() if isinstance(node, dict)}
    return {
        **_flat(config),
        **choices,
        "data": Path(config["data"]["path"]).name,
        "arm": arm(config, delays),
        "plain_arm": plain_arm(config, delays),
        "point": point(config),
        **result,
        "folder": str(folder),
        "finished": path.stat().st_mtime if path.exists() else None,
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> Row:
    flat: Row = {}
    for key, value in config.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat
