"""Chooses values of keys for each point of a sweep, on its sync arm alone, before the arms run.

The sync arm is trained with the sweep's first seed at every combination of the factors on the
values that the point has. Those of the lowest final validation loss win; a diverged trial is worse
than any other. While a neighbour of the best combination along one key has not been tried, because
it lies beyond what that key has been given, it is tried too, at the same ratio; where every
combination diverged, the one below all of them.
With `shared: X` this is done at the points of the optimizer X alone, and the others take what was
chosen there (the paper's protocol), but for those that set a tuned key themselves.
The store alone decides all this: a sweep that was killed chooses the same when it resumes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from typing_extensions import override

from sweeps.plan.settings import Tried, at, number
from sweeps.request.expand import Point, Trial
from sweeps.request.overrides import keys, overrides
from sweeps.request.schema import Sweep
from sweeps.store.results import final_loss

MAX_EXTENSIONS = 8
"""How many values beyond the factors of a key are tried for a point. Learning rates of optimizers
differ by orders of magnitude, and eight doublings are two of them."""
Values = tuple[float, ...]
"""One for each tuned key."""


@dataclass(frozen=True)
class Tuned(Tried):
    """A point with the values of its tuned keys that were tried."""

    point: Point
    tried: dict[Values, Trial]
    """Values → sync trial, ascending; empty if nothing was tried at this point."""
    settled: bool
    chosen: Values | None
    """The best values, once they are settled; None if none completed, or nothing is tuned."""
    arms: list[Trial]
    """The trials of all arms and seeds at the chosen values. Until these are settled they are at
    the middle of the tried ones, as an estimate. Empty if the sync arm diverged at all of them."""
    leader: Point | None = None
    """The point at which the values were chosen, if that is another one."""

    @property
    @override
    def choosing(self) -> list[Trial]:
        return [*self.tried.values()]


def check_reach(sweep: Sweep, points: Iterable[Point]) -> None:
    """Raises BadInput if tuning may try values that no trial can have."""
    if not sweep.tune:
        return
    ends = [_ends(factors) for factors in sweep.tune.values()]
    for point in points:
        start = _start(sweep, point)
        for factors in product(*ends):
            _at(sweep, point, _times(factors, start)).trials(sweep.seeds[:1])


def _ends(factors: Sequence[float]) -> tuple[float, float]:
    """The outermost factors that tuning may come to. Between two valid values all are valid."""
    low, high = factors[0] / factors[1], factors[-1] / factors[-2]
    return factors[0] * low**MAX_EXTENSIONS, factors[-1] * high**MAX_EXTENSIONS


def tune_all(sweep: Sweep, points: Sequence[Point]) -> list[Tuned]:
    """Every point with what was tried and chosen, by the store's results."""
    return again(sweep, [Tuned(point, {}, False, None, []) for point in points])


def again(sweep: Sweep, known: Sequence[Tuned]) -> list[Tuned]:
    """The same by the results that the store has now: what is settled stays."""
    leaders = _leaders(sweep, [one.point for one in known])
    own = {
        i: one if one.settled else tune(sweep, one.point)
        for i, one in enumerate(known)
        if leaders[i] == i
    }
    return [
        own[i] if i in own else one if one.settled else _follow(sweep, one.point, own[leaders[i]])
        for i, one in enumerate(known)
    ]


def _leaders(sweep: Sweep, points: Sequence[Point]) -> list[int]:
    """For each point the number of that at which its values are chosen; its own, unless shared."""
    if sweep.shared is None:
        return [*range(len(points))]
    values = [overrides("optimizer", value) for value in sweep.grid["optimizer"]]
    of_axis = {key for words in values for key in keys(words)}
    rest = [
        tuple(word for word in point.overrides if not of_axis & {*keys([word])}) for point in points
    ]
    own = [{*point.overrides} - {*others} for point, others in zip(points, rest, strict=True)]
    shared = {rest[i]: i for i, words in enumerate(own) if words == {f"optimizer={sweep.shared}"}}
    return [i if {*keys(words)} & {*sweep.tune} else shared[rest[i]] for i, words in enumerate(own)]


def _follow(sweep: Sweep, point: Point, leader: Tuned) -> Tuned:
    """The point at the values of another one."""
    values = leader.chosen if leader.settled else _middle(leader.tried)
    arms = [] if values is None else _at(sweep, point, values).trials(sweep.seeds)
    return Tuned(point, {}, leader.settled, leader.chosen, arms, leader.point)


def tune(sweep: Sweep, point: Point) -> Tuned:
    """The tried values of the tuned keys at `point`, and the best, by the store's results."""
    if not sweep.tune:
        return Tuned(point, {}, True, None, point.trials(sweep.seeds))
    sync = replace(point, configs={"sync": point.configs["sync"]})
    start, sizes = _start(sweep, point), [len(factors) for factors in sweep.tune.values()]
    tried: dict[Values, Trial] = {}
    todo = [_times(factors, start) for factors in product(*sweep.tune.values())]
    while todo:
        seed = sweep.seeds[:1]
        tried |= {values: _at(sweep, sync, values).trials(seed)[0] for values in todo}
        todo = beyond(losses(tried), sizes)
    tried = dict(sorted(tried.items()))
    found = losses(tried)
    if None in found.values():
        arms = _at(sweep, point, _middle(tried)).trials(sweep.seeds)
        return Tuned(point, tried, False, None, arms)
    chosen = best(found)
    arms = [] if chosen is None else _at(sweep, point, chosen).trials(sweep.seeds)
    return Tuned(point, tried, True, chosen, arms)


def _middle(tried: Mapping[Values, Trial]) -> Values:
    return [*tried][len(tried) // 2]


def losses(tried: Mapping[Values, Trial]) -> dict[Values, float | None]:
    """Values → final validation loss: infinite if the trial diverged, None if it has to run."""
    return {values: final_loss(trial) for values, trial in tried.items()}


def best(found: Mapping[Values, float | None]) -> Values | None:
    """The values of the lowest loss, the smallest of equally good ones; None if none completed."""
    finite = {values: loss for values, loss in found.items() if loss not in (None, math.inf)}
    return min(sorted(finite), key=lambda values: finite[values] or 0.0, default=None)


def is_on_edge(values: Values, tried: Iterable[Values]) -> bool:
    """Whether one of the values is the smallest or largest of its key that was tried."""
    axes = zip(*tried, strict=True)
    return any(value in (min(of), max(of)) for value, of in zip(values, axes, strict=True))


def beyond(found: Mapping[Values, float | None], sizes: Sequence[int]) -> list[Values]:
    """What to try next: neighbours of the best values along one key that were not tried, or, if
    none completed, what lies below all. `sizes`: the number of factors of each key.

    Empty if there is nothing, and while a trial has to run.
    """
    if None in found.values():
        return []
    axes = [
        _extended(sorted({*of}), size + MAX_EXTENSIONS)
        for of, size in zip(zip(*found, strict=True), sizes, strict=True)
    ]
    winner = best(found)
    if winner is None:
        lowest = tuple(axis[0] for axis in axes)
        return [lowest] if lowest not in found else []
    place = [axis.index(value) for axis, value in zip(axes, winner, strict=True)]
    beside = [
        (*winner[:key], axis[i], *winner[key + 1 :])
        for key, axis in enumerate(axes)
        for i in (place[key] - 1, place[key] + 1)
        if 0 <= i < len(axis)
    ]
    return [values for values in beside if values not in found]


def _extended(axis: list[float], most: int) -> list[float]:
    """The ascending values with one more at each end, at the same ratio; the same if it has `most`
    values already."""
    if len(axis) >= most:
        return axis
    low, high = axis[0] * (axis[0] / axis[1]), axis[-1] * (axis[-1] / axis[-2])
    return [low, *axis, high]


def _times(factors: Iterable[float], start: Values) -> Values:
    return tuple(factor * value for factor, value in zip(factors, start, strict=True))


def _start(sweep: Sweep, point: Point) -> Values:
    """The values of the tuned keys in the point's sync arm.

    Raises BadInput for one that is no number, or 0, of which every multiple is 0.
    """
    return tuple(number(point, key) for key in sweep.tune)


def _at(sweep: Sweep, point: Point, values: Values) -> Point:
    """The point with these values of the tuned keys in every arm."""
    return at(point, dict(zip(sweep.tune, values, strict=True)))
