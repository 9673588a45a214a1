"""Chooses settings of several keys for each point of a sweep, by a sampler with a budget.

Every arm trains each setting that the sampler proposes, at the seeds of choice, so that no pair is
torn: what Optuna is told is the mean final loss over the arms, infinite if one diverged. When
the budget is spent, each arm has a setting of its own lowest mean loss, among those at which sync
completed. All arms run at these settings, at the sweep's own seeds, which chose nothing.
The store alone decides all this: a search that was killed asks and is told the same again.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipegap.sweeps.plan.tried import Choice, TriedSetting, try_at
from pipegap.sweeps.request.expand import GridPoint, value_of
from pipegap.sweeps.request.schema import Axis, Search, Sweep
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot

if TYPE_CHECKING:
    import optuna

DIGITS = 4
"""Significant digits of a proposed number: a setting is written in full on a command line."""

Space = Mapping[str, tuple[float, float, bool] | Sequence[Any]]
"""Key → low, high and whether the scale is logarithmic; or the choices."""


def _study(
    search: Search, space: Space
) -> tuple["optuna.Study", dict[str, "optuna.distributions.BaseDistribution"]]:
    """Return a new study by Optuna's TPE, and what it may draw for each key.

    Asked in the same order and told the same losses it proposes the same settings again. Raises
    BadInput if Optuna is not installed.
    """
    try:
        import optuna
        from optuna.distributions import CategoricalDistribution, FloatDistribution
    except ImportError:
        allowed = "needs the package optuna: pip install 'pipegap[search]'"
        raise BadInput("search", "optuna", allowed) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # else it prints on each study
    sampler = optuna.samplers.TPESampler(seed=search.sampler_seed)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    axes: dict[str, optuna.distributions.BaseDistribution] = {
        key: FloatDistribution(axis[0], axis[1], log=axis[2])
        if isinstance(axis, tuple)
        else CategoricalDistribution(axis)
        for key, axis in space.items()
    }
    return study, axes


def _rounded(space: Space, proposed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: float(f"{number:.{DIGITS}g}") if isinstance(space[key], tuple) else number
        for key, number in proposed.items()
    }


def check_space(search: Search, points: Iterable[GridPoint]) -> None:
    """Raise BadInput for a key that no arm of a point has, or a value that no trial can have."""
    for point in points:
        for corner in _corners(_space_at(point, search)):
            point.at(corner).trials(search.seeds[:1])


def try_settings(sweep: Sweep, search: Search, point: GridPoint, seen: Snapshot) -> Choice:
    """Return what the sampler proposes at a point, by the store's results, and the best of it."""
    space = _space_at(point, search)
    study, axes = _study(search, space)
    tried: list[TriedSetting] = []
    while len(tried) < search.budget:
        number = min(search.at_once, search.budget - len(tried))
        proposed = [study.ask(axes) for _ in range(number)]
        settings = [try_at(point, _rounded(space, p.params), search.seeds, seen) for p in proposed]
        tried += settings
        losses = [setting.losses for setting in settings]
        if None in losses:  # Optuna hears of all that it proposed together, or of none
            return Choice(point, tried, arms=point.trials(sweep.seeds))
        for one, of_arms in zip(proposed, losses, strict=True):
            study.tell(one, fmean((of_arms or {}).values()))
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
    in_arms = (value_of(config, key) for config in point.configs.values())
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
