"""The key of a point: what the trials of a comparison must have in common."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pandas as pd

from analysis.schema import TRIAL
from trainer.identity import CHANGES_NO_NUMBER

ARM_GROUPS = ("pipeline", "correction")
READ_AS = {"num_updates_asked": "num_updates", "data_hash": "data.path"}
"""Columns of results that tell points apart, and what a reader knows them by."""
CHOICES = ("model", "lr_schedule")
"""Labels of choices that may have the same keys and still be others."""
MEASURES_ONLY = ("diagnostics",)
"""Keys of what a trial measures beside its loss: they change no number of the training."""


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by their dotted names; a list is a leaf."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache
def is_of_point(key: str) -> bool:
    """Whether a config key belongs to the point: not the arm's, nor the seed, nor a path.

    Nor which checkpoint a trial went on from, exactly, on another number of stages.
    """
    return (
        key.split(".", maxsplit=1)[0] not in (*ARM_GROUPS, *MEASURES_ONLY)
        and key not in ("seed", "resume_from")
        and key not in CHANGES_NO_NUMBER
    )


def point(flat_config: Mapping[str, Any], data_hash: str | None) -> str:
    """Key of the settings, a hyphen, and the start of the data's hash (0 where it is not known)."""
    shared = {key: value for key, value in flat_config.items() if is_of_point(key)}
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()
    return f"{digest[:12]}-{(data_hash or '0')[:8]}"


def varied(trials: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By optimizer, its points (the index) and the keys that differ among them (the columns)."""
    in_config = [key for key in map(str, trials) if is_of_point(key) and key not in TRIAL]
    keys = [*(key for key in in_config if not key.startswith("versions.")), *READ_AS, *CHOICES]
    # An unfinished trial has not recorded its data: its point is not known in full.
    known = trials[trials["status"] != "unfinished"].drop_duplicates("point").set_index("point")
    return {
        str(optimizer): group[
            [READ_AS.get(key, key) for key in keys if group[key].nunique(dropna=False) > 1]
        ]
        for optimizer, group in known.groupby("optimizer")
    }


def settings(trials: pd.DataFrame) -> dict[str, str]:
    """For each point, in words, the keys that differ among the points of its optimizer."""
    return {
        str(name): in_words(row)
        for group in varied(trials).values()
        for name, row in group.iterrows()
    }


def in_words(known: pd.Series | Mapping[str, Any]) -> str:
    """`optimizer.lr=0.002, batch_size=16` of a row of `varied`, for example."""
    return ", ".join(f"{key}={value}" for key, value in known.items())
