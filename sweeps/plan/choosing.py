"""Chooses values of keys for each point of a sweep, on its sync arm alone, before the arms run.

The sync arm is trained with the sweep's first seed at every combination of the factors on the
values that the point has. The combination of the lowest final validation loss wins; a diverged
trial is worse than any other. While a neighbour of the best combination along one key lies beyond
what that key has been given, the neighbour is tried too, at the same ratio. Where every combination
diverged, the one below all of them is tried.
With `shared: X` this is done at the points of the optimizer X alone, and the others take what was
chosen there (the paper's protocol), but for those that set a tuned key themselves.
The store alone decides all this: a sweep that was killed chooses the same when it resumes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product

from pipegap.sweeps.plan.tried import Choice, TriedSetting, try_at
from pipegap.sweeps.request.expand import GridPoint, Trial, value_of
from pipegap.sweeps.request.schema import Sweep, keys, overrides
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot

MAX_EXTENSIONS = 8
"""How many values beyond the factors of a key are tried for a point. Learning rates of optimizers
differ by orders of magnitude, and eight doublings are two of them."""
Values = tuple[float, ...]
"""One for each tuned key."""
Losses = Mapping[Values, float | None]
"""Values → final validation loss: infinite if the trial diverged, None if it has to run."""


def check_reach(sweep: Sweep, points: Iterable[GridPoint]) -> None:
    """Raise BadInput if tuning may try values that no trial can have."""
    if not sweep.tune:
        return
    ends = [_ends(factors) for factors in sweep.tune.values()]
    for point in points:
        start = _start(sweep, point)
        for factors in product(*ends):
            point.at(_by_key(sweep, _times(factors, start))).trials(sweep.seeds[:1])


def _ends(factors: Sequence[float]) -> tuple[float, float]:
    """Return the outermost factors that tuning may reach; all between two valid ones are valid."""
    low, high = factors[0] / factors[1], factors[-1] / factors[-2]
    return factors[0] * low**MAX_EXTENSIONS, factors[-1] * high**MAX_EXTENSIONS


def tune_all(sweep: Sweep, choices: Sequence[Choice], seen: Snapshot) -> list[Choice]:
    """Return the choices by the results that the store has now; settled ones stay."""
    leaders = _leaders(sweep, [choice.point for choice in choices])
    numbered = [*zip(range(len(choices)), leaders, choices, strict=True)]
    tuned = [
        tune(sweep, choice.point, seen) if i == leader and not choice.settled else choice
        for i, leader, choice in numbered
    ]
    return [
        tuned[i] if i == leader or choice.settled else _follow(sweep, choice.point, tuned[leader])
        for i, leader, choice in numbered
    ]


def _leaders(sweep: Sweep, points: Sequence[GridPoint]) -> list[int]:
    """Return, for each point, the index of the point at which its values are chosen."""
    if sweep.shared is None:
        return [*range(len(points))]
    of_axis = {
        key for value in sweep.grid["optimizer"] for key in keys(overrides("optimizer", value))
    }
    leaders, words = dict[tuple[str, ...], int](), []
    for i, point in enumerate(points):
        own = [word for word in point.overrides if {*keys([word])} & of_axis]
        setting = tuple(word for word in point.overrides if word not in own)
        words.append((own, setting))
        if own == [f"optimizer={sweep.shared}"]:
            leaders[setting] = i
    return [
        i if {*keys(own)} & {*sweep.tune} else leaders[setting]
        for i, (own, setting) in enumerate(words)
    ]


def _follow(sweep: Sweep, point: GridPoint, leader: Choice) -> Choice:
    """Return the choice at a point that takes the values of another one."""
    settings = [*leader.chosen.values()] if leader.settled else [_middle(leader.tried)]
    arms = [t for setting in settings for t in point.at(setting.values).trials(sweep.seeds)]
    return Choice(point, [], leader.settled, leader.chosen, arms, leader.point)


def tune(sweep: Sweep, point: GridPoint, seen: Snapshot) -> Choice:
    """Return what is tried at a point and the best of it, by the store's results."""
    if not sweep.tune:
        return Choice(point, settled=True, arms=point.trials(sweep.seeds))
    sync = replace(point, configs={"sync": point.configs["sync"]})

    def arms_at(setting: TriedSetting) -> list[Trial]:
        return point.at(setting.values).trials(sweep.seeds)

    start, sizes = _start(sweep, point), [len(factors) for factors in sweep.tune.values()]
    tried: dict[Values, TriedSetting] = {}
    losses: Losses = {}
    todo = [_times(factors, start) for factors in product(*sweep.tune.values())]
    while todo:
        for values in todo:
            tried[values] = try_at(sync, _by_key(sweep, values), sweep.seeds[:1], seen)
        losses = {values: (setting.losses or {}).get("sync") for values, setting in tried.items()}
        todo = beyond(losses, sizes)
    ascending = [tried[values] for values in sorted(tried)]
    if None in losses.values():
        return Choice(point, ascending, arms=arms_at(_middle(ascending)))
    winner = _best(losses)
    if winner is None:
        return Choice(point, ascending, settled=True)
    best = tried[winner]
    return Choice(point, ascending, settled=True, chosen={"sync": best}, arms=arms_at(best))


def _middle(tried: Sequence[TriedSetting]) -> TriedSetting:
    return tried[len(tried) // 2]


def _best(losses: Losses) -> Values | None:
    """Return the values of the lowest loss, the smallest of equally good ones; None without any."""
    finite = {values: loss for values, loss in losses.items() if loss not in (None, math.inf)}
    return min(sorted(finite), key=lambda values: finite[values] or 0.0, default=None)


def beyond(losses: Losses, sizes: Sequence[int]) -> list[Values]:
    """Return what to try next: neighbours of the best values along one key that were not tried.

    If no trial completed, the values below all others are next. Empty if there is nothing, and
    while a trial has to run. `sizes`: the number of factors of each key.
    """
    if None in losses.values():
        return []
    axes = [
        _extended(sorted({*axis}), size + MAX_EXTENSIONS)
        for axis, size in zip(zip(*losses, strict=True), sizes, strict=True)
    ]
    winner = _best(losses)
    if winner is None:
        lowest = tuple(axis[0] for axis in axes)
        return [lowest] if lowest not in losses else []
    place = [axis.index(value) for axis, value in zip(axes, winner, strict=True)]
    beside = [
        (*winner[:key], axis[i], *winner[key + 1 :])
        for key, axis in enumerate(axes)
        for i in (place[key] - 1, place[key] + 1)
        if 0 <= i < len(axis)
    ]
    return [values for values in beside if values not in losses]


def _extended(axis: list[float], most: int) -> list[float]:
    """Return the ascending values with one more at each end, unless there are `most` already."""
    if len(axis) >= most:
        return axis
    low, high = axis[0] * (axis[0] / axis[1]), axis[-1] * (axis[-1] / axis[-2])
    return [low, *axis, high]


def _times(factors: Iterable[float], start: Values) -> Values:
    return tuple(factor * value for factor, value in zip(factors, start, strict=True))


def _start(sweep: Sweep, point: GridPoint) -> Values:
    """Return the values of the tuned keys in the point's sync arm.

    Raises BadInput for a value that is no number, or 0, of which every multiple is 0.
    """
    start = {key: value_of(point.configs["sync"], key) for key in sweep.tune}
    for key, own in start.items():
        if isinstance(own, bool) or not isinstance(own, int | float) or own == 0:
            allowed = f"must be a number other than 0 in the config ({own})"
            raise BadInput("sweep.tune", key, allowed)
    return tuple(start.values())


def _by_key(sweep: Sweep, values: Values) -> dict[str, float]:
    return dict(zip(sweep.tune, values, strict=True))
