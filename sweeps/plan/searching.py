"""Chooses settings of several keys for each point of a sweep, by a sampler with a budget.

Every arm trains each setting that the sampler proposes, at the seeds of choice, so that no pair is
torn: what the sampler is told is the mean final loss over the arms, infinite if one diverged. When
the budget is spent, each arm has a setting of its own lowest mean loss, among those at which sync
completed. All arms run at these settings, at the sweep's own seeds, which chose nothing.
The store alone decides all this: a search that was killed asks and is told the same again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from typing_extensions import override

from sweeps.plan.sampler import Sampler, Space
from sweeps.plan.settings import Tried, at, value
from sweeps.request.expand import Point, Trial
from sweeps.request.schema import Sweep
from sweeps.request.search import Axis, Search
from sweeps.store.results import final_loss
from trainer.base.errors import BadInput

SYNC = "sync"


@dataclass(frozen=True)
class Setting:
    """A proposal of the sampler: its values, and its trials, every arm at every seed of choice."""

    values: dict[str, Any]
    point: Point
    trials: list[Trial]

    @property
    def losses(self) -> dict[str, float] | None:
        """Arm → mean final loss, infinite if it diverged; None while a trial has to run."""
        found = [(trial.arm, final_loss(trial)) for trial in self.trials]
        if any(loss is None for _, loss in found):
            return None
        return {
            arm: fmean(loss for other, loss in found if other == arm and loss is not None)
            for arm in self.point.configs
        }


@dataclass(frozen=True)
class Searched(Tried):
    """A point with the settings that were tried."""

    point: Point
    tried: list[Setting]
    """In the order in which they were proposed."""
    settled: bool
    chosen: dict[str, Setting]
    """Arm → its best setting, once the budget is spent; empty if sync diverged at all of them."""
    arms: list[Trial]
    """The trials of all arms and seeds at the chosen settings, those of sync's first. Until the
    budget is spent they are at the point's own values, as an estimate."""

    @property
    @override
    def choosing(self) -> list[Trial]:
        return [trial for setting in self.tried for trial in setting.trials]


def check_space(asked: Search, points: Iterable[Point]) -> None:
    """Raises BadInput for a key that no arm of a point has, or a value that no trial can have."""
    for point in points:
        space = space_at(point, asked)
        for ends in _corners(space):
            at(point, ends).trials(asked.seeds[:1])


def search(sweep: Sweep, asked: Search, point: Point) -> Searched:
    """What the sampler proposes at `point`, by the store's results, and the best of it."""
    sampler = Sampler(space_at(point, asked), asked.sampler_seed)
    tried: list[Setting] = []
    while len(tried) < asked.budget:
        proposed = sampler.ask(min(asked.at_once, asked.budget - len(tried)))
        settings = [_setting(point, values, asked.seeds) for _, values in proposed]
        tried += settings
        for (name, _), setting in zip(proposed, settings, strict=True):
            losses = setting.losses
            if losses is None:  # the sampler hears of all that it proposed together, or of none
                return Searched(point, tried, False, {}, point.trials(sweep.seeds))
            sampler.tell(name, fmean(losses.values()))
    chosen = best(tried)
    arms = [t for setting in chosen.values() for t in setting.point.trials(sweep.seeds)]
    return Searched(point, tried, True, chosen, _once(arms))


def best(tried: Sequence[Setting]) -> dict[str, Setting]:
    """For each arm the setting of its lowest loss, the first of equally good ones, sync's first.

    Of those at which sync completed, as everywhere a gap is asked for; an arm that completed at
    none of them has none.
    """
    known = [(setting, setting.losses or {}) for setting in tried]
    fair = [(setting, found) for setting, found in known if found.get(SYNC, math.inf) < math.inf]
    arms = sorted(dict.fromkeys(arm for _, found in fair for arm in found), key=_after_sync)
    chosen = {arm: min(fair, key=_loss_of(arm)) for arm in arms}
    return {arm: setting for arm, (setting, found) in chosen.items() if found[arm] < math.inf}


def _after_sync(arm: str) -> bool:
    return arm != SYNC


def _loss_of(arm: str) -> Callable[[tuple[Setting, Mapping[str, float]]], float]:
    return lambda one: one[1][arm]


def space_at(point: Point, asked: Search) -> Space:
    """The space at a point, in values; raises BadInput for a key that no arm has there."""
    return {key: _axis(key, axis, point) for key, axis in asked.space.items()}


def _axis(key: str, axis: Axis, point: Point) -> tuple[float, float, bool] | list[Any]:
    where = f"sweep.search.space.{key}"
    found = [value(config, key) for config in point.configs.values()]
    own = next((one for one in found if one is not None), None)
    if own is None or isinstance(own, dict):
        allowed = f"must be a key that has one value in some arm, and has none at {_name(point)}: "
        raise BadInput(where, axis, f"{allowed}search.space.{key}=null leaves it out")
    if isinstance(axis, list):
        return axis
    [(form, (low, high))] = axis.items()
    if form == "range":
        return low, high, False
    if isinstance(own, bool) or not isinstance(own, int | float) or own <= 0:
        raise BadInput(where, axis, f"must be a range: factors need a positive number, not {own}")
    return low * own, high * own, True


def _corners(space: Space) -> list[dict[str, Any]]:
    """Settings at which every end and every choice occurs."""
    values = {
        key: [axis[0], axis[1]] if isinstance(axis, tuple) else [*axis]
        for key, axis in space.items()
    }
    longest = max(map(len, values.values()))
    return [{key: of[min(i, len(of) - 1)] for key, of in values.items()} for i in range(longest)]


def _setting(point: Point, values: Mapping[str, Any], seeds: Sequence[int]) -> Setting:
    there = at(point, values)
    return Setting(dict(values), there, there.trials(seeds))


def _once(trials: Sequence[Trial]) -> list[Trial]:
    return [*{trial.plan.trial_id: trial for trial in trials}.values()]


def _name(point: Point) -> str:
    return " ".join(point.overrides) or "every point"
