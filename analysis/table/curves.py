"""The losses of one trial over its updates, in as many points as a small picture can show."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainer.folder.metrics import Row, row_of

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
    shown = spaced(lines, MOST), spaced(evaluated, MOST)
    rows = {line: row_of(line) for line in {*shown[0], *shown[1]}}
    return Curves(
        _points(map(rows.get, shown[0]), "train_loss"),
        _points(map(rows.get, shown[1]), "val_loss"),
        len(lines),
        len(evaluated),
    )


def spaced(items: Sequence[_T], most: int) -> Sequence[_T]:
    """At most `most` (2 or more) of the items, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(index * step)] for index in range(most)]


def _points(rows: Iterable[Row | None], key: str) -> list[Point]:
    known = filter(None, rows)
    return [(row["update"], row[key]) for row in known if row.get(key) is not None]
