"""How a sweep chooses settings at its points: by tuning one key, by a search, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

from sweeps.plan.searching import Searched, check_space, search
from sweeps.plan.tuning import Tuned, check_reach, tune
from sweeps.request.expand import Point
from sweeps.request.schema import Sweep

Choice = Tuned | Searched


def choose(sweep: Sweep, point: Point) -> Choice:
    """What is tried at a point, and what was chosen, by the results that the store has."""
    return tune(sweep, point) if sweep.search is None else search(sweep, sweep.search, point)


def check_choice(sweep: Sweep, points: Iterable[Point]) -> None:
    """Raises BadInput if a value may be tried that no trial can have."""
    if sweep.search is None:
        check_reach(sweep, points)
    else:
        check_space(sweep.search, points)
