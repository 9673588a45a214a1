"""Chooses a key's value for each point of a sweep, on its sync arm alone, before the arms run.

The sync arm is trained with the sweep's first seed at every factor on the value that the point has.
The value of the lowest final validation loss wins; a diverged trial is worse than any other. While
the best value is the smallest or largest that was tried, one more is tried beyond it, at the same
ratio; below the smallest one while every value diverged.
The store alone decides all this: a sweep that was killed chooses the same when it resumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sweeps.plan.settings import at, number
from sweeps.request.expand import Point, Trial
from sweeps.request.schema import Sweep
from sweeps.store.results import final_loss

MAX_EXTENSIONS = 8
"""How many values beyond the factors are tried for a point. Learning rates of optimizers differ by
orders of magnitude, and eight doublings are two of them."""


@dataclass(frozen=True)
class Tuned:
    """A point with the values of its tuned key that were tried."""

    point: Point
    tried: dict[float, Trial]
    """Value → sync trial, ascending; empty if the sweep tunes nothing."""
    settled: bool
    chosen: float | None
    """The best value, once it is settled; None if no value completed."""
    arms: list[Trial]
    """The trials of all arms and seeds at the chosen value. Until that is settled they are at the
    middle of the tried values, as an estimate. Empty if the sync arm diverged at every value."""

    @property
    def choosing(self) -> list[Trial]:
        """The trials that choose, as far as they are known."""
        return [*self.tried.values()]

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        return [*self.choosing, *(self.arms if self.settled else [])]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        return [*self.choosing, *self.arms]


def check_reach(sweep: Sweep, points: Iterable[Point]) -> None:
    """Raises BadInput if tuning may try a value that no trial can have."""
    for point in points:
        for key, factors in sweep.tune.items():
            low, high = factors[0] / factors[1], factors[-1] / factors[-2]
            ends = factors[0] * low**MAX_EXTENSIONS, factors[-1] * high**MAX_EXTENSIONS
            for factor in (*ends, *factors):
                at(point, {key: factor * number(point, key)}).trials(sweep.seeds[:1])


def tune(sweep: Sweep, point: Point) -> Tuned:
    """The tried values of the tuned key at `point`, and the best, by the store's results."""
    if not sweep.tune:
        return Tuned(point, {}, True, None, point.trials(sweep.seeds))
    [(key, factors)] = sweep.tune.items()
    sync = replace(point, configs={"sync": point.configs["sync"]})
    tried: dict[float, Trial] = {}
    todo = [factor * number(point, key) for factor in factors]
    while todo:
        tried |= {value: at(sync, {key: value}).trials(sweep.seeds[:1])[0] for value in todo}
        todo = beyond(losses(tried), len(factors))
    tried = dict(sorted(tried.items()))
    found = losses(tried)
    if None in found.values():
        middle = [*tried][len(tried) // 2]
        return Tuned(point, tried, False, None, at(point, {key: middle}).trials(sweep.seeds))
    chosen = best(found)
    arms = [] if chosen is None else at(point, {key: chosen}).trials(sweep.seeds)
    return Tuned(point, tried, True, chosen, arms)


def losses(tried: Mapping[float, Trial]) -> dict[float, float | None]:
    """Value → final validation loss: infinite if the trial diverged, None if it has to run."""
    return {value: final_loss(trial) for value, trial in tried.items()}


def best(found: Mapping[float, float | None]) -> float | None:
    """The value with the lowest loss, the smallest of equally good ones; None if none completed."""
    finite = {value: loss for value, loss in found.items() if loss not in (None, math.inf)}
    return min(sorted(finite), key=lambda value: finite[value] or 0.0, default=None)


def beyond(found: Mapping[float, float | None], num_factors: int) -> list[float]:
    """The next value to try, if the best one is the smallest or largest, or none completed.

    Empty otherwise, and while a trial has to run.
    """
    values, winner = sorted(found), best(found)
    if None in found.values() or len(values) - num_factors == MAX_EXTENSIONS:
        return []
    if winner is None or winner == values[0]:
        return [values[0] * (values[0] / values[1])]
    if winner == values[-1]:
        return [values[-1] * (values[-1] / values[-2])]
    return []
