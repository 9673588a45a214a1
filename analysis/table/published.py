"""A published CSV of trials, as a report writes it (`trials.csv`), back into rows of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.table.points import VERSIONS, group_of
from analysis.table.rows import Row
from analysis.table.schema import TRIAL
from trainer.base.errors import BadInput
from trainer.config.names import YOUNGER

MAY_LACK = ("folder", "num_active_parameters")
"""Columns of the table that a published CSV may lack: a place on one machine, and what older
reports did not tell."""
WORDS = {"True": True, "False": False}


def is_published(path: Path) -> bool:
    """Whether trials are read from one CSV, not from a folder."""
    return path.suffix == ".csv" and path.is_file()


def read_published(path: Path) -> list[Row]:
    """One row per line, with the values that the table had; a missing value is None.

    There are no curves: `folder` names the line, and no such folder exists. The name of the data
    stands for its path. Raises BadInput for a file that lacks a column of the table of trials.
    """
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    if lacking := [name for name in TRIAL if name not in table and name not in MAY_LACK]:
        allowed = f"must be a trials.csv of a report: it lacks {', '.join(lacking)}"
        raise BadInput("results", path, allowed)
    return [
        dict(YOUNGER)
        | {str(name): _value(str(name), text) for name, text in line.items()}
        | {"folder": str(path / line["trial_id"]), "data.path": line["data"]}
        for line in table.to_dict("records")
    ]


def _value(name: str, text: str) -> Any:
    """Of a column of numbers or lists, or of a key of the config, what JSON reads in the text."""
    if not text:
        return None
    dtype = TRIAL.get(name, ("",))[0]
    if dtype == "string" or group_of(name) == VERSIONS:
        return text
    if dtype.startswith("datetime"):
        return pd.Timestamp(text).value
    try:
        return WORDS[text] if text in WORDS else json.loads(text)
    except ValueError:
        return text
