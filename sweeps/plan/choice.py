"""How a sweep chooses settings at its points: by tuning keys, by a search, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sweeps.plan import tuning
from sweeps.plan.searching import Searched, check_space, search
from sweeps.plan.tuning import Tuned, check_reach, tune_all
from sweeps.request.expand import Point
from sweeps.request.schema import Sweep

Choice = Tuned | Searched


def choose(sweep: Sweep, points: Sequence[Point]) -> Sequence[Choice]:
    """What is tried at each point, and what was chosen, by the results that the store has."""
    if sweep.search is None:
        return tune_all(sweep, points)
    return [search(sweep, sweep.search, point) for point in points]


def again(sweep: Sweep, known: Sequence[Choice]) -> Sequence[Choice]:
    """The same by the results that the store has now: what is settled stays."""
    if sweep.search is None:
        return tuning.again(sweep, [one for one in known if isinstance(one, Tuned)])
    return [one if one.settled else search(sweep, sweep.search, one.point) for one in known]


def check_choice(sweep: Sweep, points: Iterable[Point]) -> None:
    """Raises BadInput if a value may be tried that no trial can have."""
    if sweep.search is None:
        check_reach(sweep, points)
    else:
        check_space(sweep.search, points)
