"""Chooses settings of several keys for each point of a sweep, by a sampler with a budget.

Every arm trains each setting that the sampler proposes, at the seeds of choice, so that no pair is
torn: what the sampler is told is the mean final loss over the arms, infinite if one diverged. When
the budget is spent, each arm has a setting of its own lowest mean loss, among those at which sync
completed. All arms run at these settings, at the sweep's own seeds, which chose nothing.
The store alone decides all this: a search that was killed asks and is told the same again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sweeps.plan.tried import Choice, TriedSetting, at, mean_losses, value
from sweeps.request.expand import GridPoint
from sweeps.request.schema import Axis, Search, Sweep
from trainer.base.errors import BadInput
from trainer.store.snapshot import Snapshot

METRIC = "loss"
DIGITS = 4
"""Significant digits of a proposed number: a setting is written in full on a command line."""

Space = Mapping[str, tuple[float, float, bool] | Sequence[Any]]
"""Key → low, high and whether the scale is logarithmic; or the choices."""


class Sampler:
    """Optuna's TPE over `space`, by Ray Tune's OptunaSearch.

    Tune would ask it from a run of its own. A plan asks it again from the start, with the same seed
    and with the losses that the store has, and gets the same settings.
    """

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
            from ray.tune.search.optuna import OptunaSearch
        except ImportError:
            allowed = "needs the package optuna: pip install 'pipegap[search]'"
            raise BadInput("search", "optuna", allowed) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it prints on each study
        distributions: dict[str, optuna.distributions.BaseDistribution] = {
            key: optuna.distributions.FloatDistribution(axis[0], axis[1], log=axis[2])
            if isinstance(axis, tuple)
            else optuna.distributions.CategoricalDistribution(axis)
            for key, axis in space.items()
        }
        self._choices = {key for key, axis in space.items() if not isinstance(axis, tuple)}
        self._search = OptunaSearch(distributions, metric=METRIC, mode="min", seed=seed)
        self._num_asked = 0

    def ask(self, number: int) -> dict[str, dict[str, Any]]:
        """Propose so many settings, by the names under which their losses are told."""
        names = [str(self._num_asked + index) for index in range(number)]
        self._num_asked += number
        return {name: self._rounded(self._search.suggest(name) or {}) for name in names}

    def tell(self, name: str, loss: float) -> None:
        """Take the loss at a setting that was asked for; infinite if it diverged."""
        self._search.on_trial_complete(name, {METRIC: loss})

    def _rounded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value if key in self._choices else float(f"{value:.{DIGITS}g}")
            for key, value in values.items()
        }


def check_space(search: Search, points: Iterable[GridPoint]) -> None:
    """Raise BadInput for a key that no arm of a point has, or a value that no trial can have."""
    for point in points:
        for corner in _corners(_space_at(point, search)):
            at(point, corner).trials(search.seeds[:1])


def try_settings(sweep: Sweep, search: Search, point: GridPoint, seen: Snapshot) -> Choice:
    """Return what the sampler proposes at a point, by the store's results, and the best of it."""
    sampler = Sampler(_space_at(point, search), search.sampler_seed)
    tried: list[TriedSetting] = []
    while len(tried) < search.budget:
        proposed = sampler.ask(min(search.at_once, search.budget - len(tried)))
        settings = [_setting(point, values, search.seeds, seen) for values in proposed.values()]
        tried += settings
        for name, setting in zip(proposed, settings, strict=True):
            losses = setting.losses
            if losses is None:  # the sampler hears of all that it proposed together, or of none
                return Choice(point, tried, False, {}, point.trials(sweep.seeds))
            sampler.tell(name, fmean(losses.values()))
    chosen = best(tried)
    arms = [t for setting in chosen.values() for t in setting.point.trials(sweep.seeds)]
    return Choice(point, tried, True, chosen, [*{t.plan.trial_id: t for t in arms}.values()])


def best(tried: Sequence[TriedSetting]) -> dict[str, TriedSetting]:
    """Return, for each arm, the setting of its lowest loss, the first of equally good ones.

    Only settings at which sync completed count, as everywhere a gap is asked for. An arm that
    completed at none of them is left out. Sync comes first.
    """
    judged = [(setting, setting.losses or {}) for setting in tried]
    fair = [pair for pair in judged if pair[1].get("sync", math.inf) < math.inf]
    arms = dict.fromkeys(arm for _, losses in fair for arm in losses)
    chosen: dict[str, TriedSetting] = {}
    for arm in sorted(arms, key=lambda arm: arm != "sync"):
        setting, losses = min(fair, key=lambda pair: pair[1][arm])
        if losses[arm] < math.inf:
            chosen[arm] = setting
    return chosen


def _space_at(point: GridPoint, search: Search) -> Space:
    """Return the space at a point, in values; raises BadInput for a key that no arm has there."""
    return {key: _axis(key, axis, point) for key, axis in search.space.items()}


def _axis(key: str, axis: Axis, point: GridPoint) -> tuple[float, float, bool] | list[Any]:
    where = f"sweep.search.space.{key}"
    in_arms = (value(config, key) for config in point.configs.values())
    own = next((own for own in in_arms if own is not None), None)
    if own is None or isinstance(own, dict):
        name = " ".join(point.overrides) or "every point"
        allowed = f"must be a key that has one value in some arm, and has none at {name}: "
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
    """Return settings at which every end and every choice occurs."""
    axes = {
        key: [axis[0], axis[1]] if isinstance(axis, tuple) else [*axis]
        for key, axis in space.items()
    }
    longest = max(map(len, axes.values()))
    return [
        {key: axis[min(i, len(axis) - 1)] for key, axis in axes.items()} for i in range(longest)
    ]


def _setting(
    point: GridPoint, values: Mapping[str, Any], seeds: Sequence[int], seen: Snapshot
) -> TriedSetting:
    there = at(point, values)
    trials = there.trials(seeds)
    return TriedSetting(dict(values), there, trials, mean_losses(trials, seen))
