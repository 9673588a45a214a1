"""What tuning chose and what it tried: lines for people and tuned.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from sweeps.plan.tuning import Tuned, Values, is_on_edge, losses
from sweeps.request.expand import Point
from sweeps.request.schema import Sweep


def remarks(sweep: Sweep, points: Sequence[Tuned]) -> list[str]:
    """How the tuned keys were chosen, then one line per point; nothing if nothing is tuned."""
    if not sweep.tune:
        return []
    where = "each point" if sweep.shared is None else f"{sweep.shared}, and shared by all others,"
    how = (
        f"{_keys(sweep)} {_verb(sweep)} chosen for {where} by the lowest final validation loss of "
        f"its sync arm at seed {sweep.seeds[0]} alone. That trial is compared below too: the "
        "choice favours sync at that seed"
    )
    return [how, *(_line(sweep, point) for point in points)]


def estimate(sweep: Sweep, points: Sequence[Tuned]) -> list[str]:
    """Lines on what a plan cannot know yet."""
    num_open = sum(not point.settled for point in points)
    if not sweep.tune or not num_open:
        return []
    return [
        f"tune      {_keys(sweep)} {_verb(sweep)} not chosen yet at {num_open} of {len(points)} "
        "points: their arms are priced at the middle of the tried values, further values are not "
        "counted"
    ]


def write(sweep: Sweep, points: Sequence[Tuned], out: Path) -> str:
    """Writes tuned.csv, one row per combination of values that was tried; returns a line that says
    so.

    Its columns: `point`, every tuned key, `loss` and `chosen`.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tuned.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["point", *sweep.tune, "loss", "chosen"])
        table.writerows(_rows(sweep, points))
    return f"in {out}: tuned.csv, every value of {_keys(sweep)} that was tried"


def _rows(sweep: Sweep, points: Sequence[Tuned]) -> Iterator[tuple[object, ...]]:
    """The loss is missing if the trial diverged or has not finished."""
    for point in points:
        for values, loss in losses(point.tried).items():
            known = None if loss == math.inf else loss
            yield _name(sweep, point.point), *values, known, values == point.chosen


def _line(sweep: Sweep, point: Tuned) -> str:
    tried = ", ".join(
        f"{' '.join(f'{value:g}' for value in values)}: {_words(loss)}"
        for values, loss in losses(point.tried).items()
    )
    of = f"tried {tried}" if point.leader is None else f"as of {_name(sweep, point.leader)}"
    name, keys = _name(sweep, point.point), _keys(sweep)
    if not point.settled:
        return f"{name}: {keys} {_verb(sweep)} not chosen yet ({of})"
    if point.chosen is None:
        return f"{name} is left out: its sync arm diverged at every {keys} tried ({of})"
    on_edge = point.tried and is_on_edge(point.chosen, point.tried)
    note = ", on the edge of what was tried" if on_edge else ""
    return f"{name}: {_chosen(sweep, point.chosen)}{note} ({of})"


def _chosen(sweep: Sweep, values: Values) -> str:
    return " ".join(f"{key}={value:g}" for key, value in zip(sweep.tune, values, strict=True))


def _keys(sweep: Sweep) -> str:
    return " and ".join(sweep.tune)


def _verb(sweep: Sweep) -> str:
    return "is" if len(sweep.tune) == 1 else "are"


def _words(loss: float | None) -> str:
    if loss is None:
        return "not run"
    return "diverged" if loss == math.inf else f"{loss:.4f}"


def _name(sweep: Sweep, point: Point) -> str:
    """The point's overrides without the keys that are tuned."""
    words = [word for word in point.overrides if word.split("=")[0] not in sweep.tune]
    return " ".join(words) or "every trial"
