"""What sweeps were asked to be: the records that `python -m sweeps` leaves in the store."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.notes import some


@dataclass(frozen=True)
class Asked:
    """One trial of a sweep, done or not; its cost is None where nobody could tell."""

    arm: str
    seed: int
    tokens: int | None
    flops: float | None
    seconds: float | None


@dataclass(frozen=True)
class Record:
    """A sweep at a scale, as the last command said it."""

    sweep: str
    scale: str
    label: str
    words: tuple[str, ...]
    verdict: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    settled: bool
    """Nothing is left to tune or to judge: no further trial can be asked for."""
    remarks: tuple[str, ...]
    compared: frozenset[str]
    """Ids of the trials that its report is of."""
    trials: Mapping[str, Asked]
    """All that it takes, by their ids: also what tuning tried."""


def records(results: Path) -> list[Record]:
    """The records of a store by their labels; warns of files that are not whole records."""
    found, broken = [], []
    for path in sorted((results / "sweeps").glob("*.json")):
        try:
            found.append(_record(json.loads(path.read_bytes())))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            broken.append(path)
    if broken:
        warnings.warn(f"not whole, and so not counted: {some(broken)}", stacklevel=2)
    return found


def _record(content: Mapping[str, Any]) -> Record:
    return Record(
        **{key: str(content[key]) for key in ("sweep", "scale", "label", "verdict")},
        words=tuple(map(str, content["words"])),
        arms=tuple(map(str, content["arms"])),
        seeds=tuple(map(int, content["seeds"])),
        settled=bool(content["settled"]),
        remarks=tuple(map(str, content["remarks"])),
        compared=frozenset(map(str, content["compared"])),
        trials={
            str(trial_id): Asked(
                arm=str(asked["arm"]),
                seed=int(asked["seed"]),
                tokens=asked["tokens"],
                flops=asked["flops"],
                seconds=asked["seconds"],
            )
            for trial_id, asked in content["trials"].items()
        },
    )
