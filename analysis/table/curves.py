"""The losses of one trial over its updates, in as many points as a small picture can show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainer.folder.metrics import row_of

MOST = 100
"""Points of a curve."""
EVALUATED = b'"val_loss"'

Point = tuple[int, float]
_T = TypeVar("_T")


class Curves(NamedTuple):
    """Update and loss of evenly spaced updates, with the first and the last."""

    train: Sequence[Point]
    validation: Sequence[Point]
    num_updates: int
    num_evaluations: int

    @property
    def words(self) -> str:
        """How many of the updates and evaluations there are."""
        if not self.num_updates:
            return "No update is recorded."
        return (
            f"{len(self.train)} of {self.num_updates:,} updates and {len(self.validation)} of "
            f"{self.num_evaluations:,} evaluations, evenly spaced; losses in nats per token."
        )


def curves(folder: Path) -> Curves:
    """The curves of the trial in `folder`. Only the lines that are shown are parsed; a damaged one
    is left out."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    evaluated = [line for line in lines if EVALUATED in line]
    return Curves(
        _points(spaced(lines, MOST), "train_loss"),
        _points(spaced(evaluated, MOST), "val_loss"),
        len(lines),
        len(evaluated),
    )


def spaced(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` (2 or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def _points(lines: Sequence[bytes], key: str) -> list[Point]:
    rows = filter(None, map(row_of, lines))
    return [(row["update"], row[key]) for row in rows if row.get(key) is not None]
