"""What tuning chose and what it tried: lines for people and tuned.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.plan.tuning import Tuned, losses
from sweeps.request.schema import Sweep

COLUMNS = ("point", "key", "value", "loss", "chosen")


def remarks(sweep: Sweep, points: Sequence[Tuned]) -> list[str]:
    """How the tuned key was chosen, then one line per point; nothing if the sweep tunes nothing."""
    seed = sweep.seeds[0]
    how = [
        f"{key} is chosen for each point by the lowest final validation loss of its sync arm at "
        f"seed {seed} alone. That trial is compared below too: the choice favours sync at that seed"
        for key in sweep.tune
    ]
    return how + [_line(key, point) for key in sweep.tune for point in points]


def estimate(sweep: Sweep, points: Sequence[Tuned]) -> list[str]:
    """Lines on what a plan cannot know yet."""
    num_open = sum(not point.settled for point in points)
    return [
        f"tune      {key} is not chosen yet at {num_open} of {len(points)} points: their arms are "
        "priced at the middle of the tried values, further values are not counted"
        for key in sweep.tune
        if num_open
    ]


def write(sweep: Sweep, points: Sequence[Tuned], out: Path) -> str:
    """Writes tuned.csv, one row per value that was tried; returns a line that says so."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tuned.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(row for key in sweep.tune for row in _rows(key, points))
    return f"in {out}: tuned.csv, every value of {', '.join(sweep.tune)} that was tried"


def _rows(key: str, points: Sequence[Tuned]) -> Iterator[tuple[object, ...]]:
    """Rows of COLUMNS. The loss is missing if the trial diverged or has not finished."""
    for point in points:
        for value, loss in losses(point.tried).items():
            known = None if loss == math.inf else loss
            yield _name(key, point), key, value, known, value == point.chosen


def _line(key: str, point: Tuned) -> str:
    tried = ", ".join(f"{value:g}: {_words(loss)}" for value, loss in losses(point.tried).items())
    name = _name(key, point)
    if not point.settled:
        return f"{name}: {key} is not chosen yet (tried {tried})"
    if point.chosen is None:
        return f"{name} is left out: its sync arm diverged at every {key} tried ({tried})"
    edge = point.chosen in (min(point.tried), max(point.tried))
    note = ", on the edge of what was tried" if edge else ""
    return f"{name}: {key}={point.chosen:g}{note} (tried {tried})"


def _words(loss: float | None) -> str:
    if loss is None:
        return "not run"
    return "diverged" if loss == math.inf else f"{loss:.4f}"


def _name(key: str, point: Tuned) -> str:
    """The point's overrides without the key that is tuned."""
    words = [word for word in point.point.overrides if word.split("=")[0] != key]
    return " ".join(words) or "every trial"
