"""Trials to be paired, and what is found of an arm."""

from pathlib import Path
from typing import Any

import pandas as pd

from tests.support.synthetic_store import config, result, write


def one(table: pd.DataFrame, arm: str, optimizer: str = "adamw") -> Any:
    rows = table[(table["arm"] == arm) & (table["optimizer"] == optimizer)]
    assert len(rows) == 1
    return rows.iloc[0]


def add(store: Path, arm: str, loss: float | None, seed: int = 0, **changes: Any) -> None:
    """A trial whose pipeline or data path (`path`) or result is changed."""
    settings = config(arm, seed=seed)
    settings["data"]["path"] = changes.pop("path", "data/wiki")
    for key in ("num_stages", "num_microbatches", "_target_"):
        if key in changes:
            settings["pipeline"][key] = changes.pop(key)
    write(store, settings, result(settings, loss, **changes))
