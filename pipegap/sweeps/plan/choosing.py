"""Chooses settings for each point of a sweep, by tuning or by a search, before its arms run there.

Tuning trains the sync arm alone, with the sweep's first seed or with a seed that compares nothing,
at every combination of the factors on the values that the point has; the keys of `tuning.inverse`
are divided by the factors. The combination with the lowest final validation loss wins; a diverged
trial is worse than any other. If the best value of a key is the first or the last one of its grid,
the grid is extended by one value at the same ratio, until the best value lies inside, or the last
step gained less than seeds differ by, or for MAX_BEYOND values. Where every combination diverged,
the grid is extended downwards. With `shared: X` only the points of the
optimizer X are tuned, and the other points take the values chosen there (the paper's protocol),
except points that set a tuned key themselves.

A search has a sampler and a budget. Every arm trains each setting that the sampler proposes, at the
seeds reserved for choosing, so that every pair is complete: Optuna gets the mean final loss over
the arms, which is infinite if an arm diverged. When the budget is spent, each arm chooses the
setting with its lowest mean loss, among the settings at which sync completed. All arms then run at
all chosen settings, at the sweep's own seeds, which no choice has seen.

The store alone determines every choice: a sweep that was killed chooses the same when it resumes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipegap.sweeps.request.expand import GridPoint, Trial, value_of
from pipegap.sweeps.request.schema import Axis, Search, Sweep, keys
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.snapshot import Snapshot

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

MAX_EXTENSIONS = 8
"""How many values beyond the factors of a key are tried for a point at which nothing completed.
Learning rates of optimizers differ by orders of magnitude, and eight doublings are two of them."""
MAX_BEYOND = 2
"""How many values beyond the factors are tried once a trial completed: a round of a large model
takes hours."""
LEAST_GAIN = 0.005
"""Nats per token that a step beyond the factors must gain for the next one: the standard deviation
over seeds of a final loss of sync is 0.005 (Muon) to 0.009 (SOAP) at `tiny` (findings/main)."""
DIGITS = 4
"""Significant digits of a proposed number: a setting is written in full on a command line."""

Values = tuple[float, ...]
"""One for each tuned key."""
Losses = Mapping[Values, float | None]
"""Values → final validation loss: infinite if the trial diverged, None if it has to run."""
Space = Mapping[str, tuple[float, float, bool] | Sequence[Any]]
"""Key → low, high and whether the scale is logarithmic; or the choices."""


@dataclass(frozen=True)
class TriedSetting:
    """Values of dotted keys that are tried at a point."""

    values: dict[str, Any]
    point: GridPoint
    """The point with these values, in every arm."""
    trials: list[Trial]
    """The trials by which the values are judged."""
    losses: dict[str, float] | None = field(compare=False)
    """Arm → mean final loss, infinite if it diverged; None while a trial has to run."""


@dataclass(frozen=True)
class Choice:
    """A point, the settings that were tried there, and those that were chosen."""

    point: GridPoint
    tried: Sequence[TriedSetting] = ()
    """Ascending by value where keys are tuned, else in the order in which they were proposed."""
    settled: bool = False
    """Whether nothing is left to try."""
    chosen: Mapping[str, TriedSetting] = field(default_factory=dict)
    """Arm → its best setting, once the choice is settled. Tuning chooses by sync alone. Empty if
    sync completed at none of the settings, or if nothing is tried."""
    arms: Sequence[Trial] = ()
    """The trials of all arms and seeds at the chosen settings; an estimate until these are settled.
    Empty if sync completed at none of the settings."""
    leader: GridPoint | None = None
    """The point at which the settings were chosen, if that is another one."""

    @property
    def choosing(self) -> list[Trial]:
        """The trials that choose, as far as they are known."""
        return [trial for setting in self.tried for trial in setting.trials]

    def arms_at(self, point: GridPoint, seeds: Sequence[int]) -> list[Trial]:
        """Return the trials of all arms at the values that tuning chose, there or at another point;
        while nothing is chosen, at the middle of the tried ones."""
        settings = [*self.chosen.values()] if self.settled else [self.tried[len(self.tried) // 2]]
        return [t for setting in settings for t in point.at(setting.values).trials(seeds)]


def try_at(
    point: GridPoint, values: Mapping[str, Any], seeds: Sequence[int], snapshot: Snapshot
) -> TriedSetting:
    """Return the values as they are tried at a point, in every arm and at these seeds."""
    point_there = point.at(values)
    trials, by_arm = point_there.trials(seeds), dict[str, list[float]]()
    for trial in trials:
        if (loss := snapshot.final_loss(trial)) is None:
            return TriedSetting(dict(values), point_there, trials, None)
        by_arm.setdefault(trial.arm, []).append(loss)
    losses = {arm: fmean(of_arm) for arm, of_arm in by_arm.items()}
    return TriedSetting(dict(values), point_there, trials, losses)


def check_reach(sweep: Sweep, points: Iterable[GridPoint]) -> None:
    """Raise BadInput for a key that cannot be chosen at a point, or if values that no trial can
    have may be tried there."""
    for point in points:
        for values in _ends(sweep, point):
            point.at(values).trials(sweep.seeds[:1])


def _ends(sweep: Sweep, point: GridPoint) -> list[dict[str, Any]]:
    """Return settings at which all ends of what may be tried at a point occur."""
    if sweep.search is not None:
        return _corners(_space_at(point, sweep.search))
    if not sweep.tune:
        return []
    start = _start(sweep.tune, point)
    ends = [_outermost(factors) for factors in sweep.tune.values()]
    return [_setting(sweep, point, _times(factors, start)) for factors in product(*ends)]


def choose(sweep: Sweep, choices: Sequence[Choice], snapshot: Snapshot) -> list[Choice]:
    """Return the choices by the results that were seen; settled ones stay."""
    if (search := sweep.search) is not None:
        return [c if c.settled else try_settings(sweep, search, c.point, snapshot) for c in choices]
    leaders = _leaders(sweep, [choice.point for choice in choices])
    tuned = [
        c if c.settled or i != leaders[i] else tune(sweep, c.point, snapshot)
        for i, c in enumerate(choices)
    ]
    return [
        c if c.settled or i == leaders[i] else _follow(sweep, c.point, tuned[leaders[i]])
        for i, c in enumerate(tuned)
    ]


def _leaders(sweep: Sweep, points: Sequence[GridPoint]) -> list[int]:
    """Return, for each point, the index of the point at which its values are chosen."""
    if sweep.shared is None:
        return [*range(len(points))]
    of_axis = {*keys(sweep.axes["optimizer"])}
    leaders, words = dict[tuple[str, ...], int](), []
    for i, point in enumerate(points):
        axis_words = [word for word in point.overrides if {*keys([word])} & of_axis]
        setting = tuple(word for word in point.overrides if word not in axis_words)
        words.append((axis_words, setting))
        if axis_words == [f"optimizer={sweep.shared}"]:
            leaders[setting] = i
    return [
        i if {*keys(axis_words)} & {*sweep.tune} else leaders[setting]
        for i, (axis_words, setting) in enumerate(words)
    ]


def _follow(sweep: Sweep, point: GridPoint, leader: Choice) -> Choice:
    """Return the choice at a point that takes the values of another one."""
    arms = leader.arms_at(point, sweep.seeds)
    return Choice(point, [], leader.settled, leader.chosen, arms, leader.point)


def tune(sweep: Sweep, point: GridPoint, snapshot: Snapshot) -> Choice:
    """Return what is tried at a point and the best of it, by the store's results."""
    if not sweep.tune:
        return Choice(point, settled=True, arms=point.trials(sweep.seeds))
    sync = replace(point, configs={"sync": point.configs["sync"]})
    start, sizes = _start(sweep.tune, point), [len(factors) for factors in sweep.tune.values()]
    seeds = sweep.seeds[:1] if sweep.tuning.seed is None else [sweep.tuning.seed]
    tried: dict[Values, TriedSetting] = {}
    losses: Losses = {}
    todo = [_times(factors, start) for factors in product(*sweep.tune.values())]
    while todo:
        for values in todo:
            tried[values] = try_at(sync, _setting(sweep, point, values), seeds, snapshot)
        losses = {values: (setting.losses or {}).get("sync") for values, setting in tried.items()}
        todo = beyond(losses, sizes)
    settled = None not in losses.values()
    winner = _best(losses) if settled else None
    best_of_arms = {} if winner is None else {"sync": tried[winner]}
    choice = Choice(point, [tried[values] for values in sorted(tried)], settled, best_of_arms)
    return replace(choice, arms=choice.arms_at(point, sweep.seeds))


def _best(losses: Losses) -> Values | None:
    """Return the values of the lowest loss, the smallest of equally good ones; None without any."""
    finite = {values: loss for values, loss in losses.items() if loss not in (None, math.inf)}
    return min(sorted(finite), key=lambda values: finite[values] or 0.0, default=None)


def beyond(losses: Losses, sizes: Sequence[int]) -> list[Values]:
    """Return what to try next: neighbours of the best values along one key that were not tried.

    A value beyond those that were tried needs an `edge_gain` of LEAST_GAIN. If no trial completed,
    the values below all others are next. Empty if there is nothing, and while a trial has to run.
    `sizes`: the number of factors of each key.
    """
    if None in losses.values():
        return []
    winner = _best(losses)
    axes = [sorted({*axis}) for axis in zip(*losses, strict=True)]
    if winner is None:
        lowest = tuple(
            _extended(axis, size + MAX_EXTENSIONS)[0]
            for axis, size in zip(axes, sizes, strict=True)
        )
        return [lowest] if lowest not in losses else []
    for key, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        completed = {values[key] for values, loss in losses.items() if loss != math.inf}
        num_before = max(0, len(axis) - len(completed) - size + 1)  # until the first completed
        most = size + min(num_before + MAX_BEYOND, MAX_EXTENSIONS)
        if edge_gain(losses, winner, key) >= LEAST_GAIN:
            axes[key] = _extended(axis, most)
    place = [axis.index(value) for axis, value in zip(axes, winner, strict=True)]
    neighbours = [
        (*winner[:key], axis[i], *winner[key + 1 :])
        for key, axis in enumerate(axes)
        for i in (place[key] - 1, place[key] + 1)
        if 0 <= i < len(axis)
    ]
    return [values for values in neighbours if values not in losses]


def edge_gain(losses: Losses, winner: Values, key: int) -> float:
    """Return by how much the loss fell in the last step of a key to the winner, which lies at an
    end of its values; infinite if nothing completed beside it, or it lies inside."""
    axis = sorted({values[key] for values in losses})
    place = axis.index(winner[key])
    if len(axis) < 2 or 0 < place < len(axis) - 1:
        return math.inf
    inner = axis[1] if place == 0 else axis[-2]
    loss, best = losses.get((*winner[:key], inner, *winner[key + 1 :])), losses[winner]
    return math.inf if loss is None or best is None else loss - best


def _extended(axis: list[float], most: int) -> list[float]:
    """Return the ascending values with one more at each end, unless there are `most` already."""
    if len(axis) >= most:
        return axis
    low, high = axis[0] * (axis[0] / axis[1]), axis[-1] * (axis[-1] / axis[-2])
    return [low, *axis, high]


def _outermost(factors: Sequence[float]) -> tuple[float, float]:
    """Return the outermost factors that tuning may reach; all between two valid ones are valid."""
    low, high = factors[0] / factors[1], factors[-1] / factors[-2]
    return factors[0] * low**MAX_EXTENSIONS, factors[-1] * high**MAX_EXTENSIONS


def _times(factors: Iterable[float], start: Values) -> Values:
    return tuple(factor * value for factor, value in zip(factors, start, strict=True))


def _setting(sweep: Sweep, point: GridPoint, values: Values) -> dict[str, float]:
    """Return the tuned keys at these values, and the keys that are held inverse to them."""
    factor = math.prod(values) / math.prod(_start(sweep.tune, point))
    inverse = sweep.tuning.inverse
    inverse_values = {
        key: value / factor for key, value in zip(inverse, _start(inverse, point), strict=True)
    }
    return {**dict(zip(sweep.tune, values, strict=True)), **inverse_values}


def _start(keys: Iterable[str], point: GridPoint) -> Values:
    """Return the values of these keys in the point's sync arm.

    Raises BadInput for a value that is no number, or 0, of which every multiple is 0.
    """
    start = {key: value_of(point.configs["sync"], key) for key in keys}
    for key, value in start.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
            allowed = f"must be a number other than 0 in the config ({value})"
            raise BadInput("sweep.tune", key, allowed)
    return tuple(start.values())


def try_settings(sweep: Sweep, search: Search, point: GridPoint, snapshot: Snapshot) -> Choice:
    """Return what the sampler proposes at a point, by the store's results, and the best of it."""
    space = _space_at(point, search)
    study, axes = _study(search, space)
    tried: list[TriedSetting] = []
    while len(tried) < search.budget:
        number = min(search.at_once, search.budget - len(tried))
        proposed = [study.ask(axes) for _ in range(number)]
        settings = [
            try_at(point, _rounded(space, p.params), search.seeds, snapshot) for p in proposed
        ]
        tried += settings
        losses = [setting.losses for setting in settings]
        if None in losses:  # Optuna hears of all that it proposed together, or of none
            return Choice(point, tried, arms=point.trials(sweep.seeds))
        for proposal, of_arms in zip(proposed, losses, strict=True):
            study.tell(proposal, fmean((of_arms or {}).values()))
    best_of_arms = _best_of_arms(tried)
    arms = [t for setting in best_of_arms.values() for t in setting.point.trials(sweep.seeds)]
    return Choice(point, tried, True, best_of_arms, [*{t.plan.trial_id: t for t in arms}.values()])


def _study(search: Search, space: Space) -> "tuple[optuna.Study, dict[str, BaseDistribution]]":
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
    axes: dict[str, BaseDistribution] = {
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


def _best_of_arms(tried: Sequence[TriedSetting]) -> dict[str, TriedSetting]:
    """Return, for each arm, the setting of its lowest loss, the first of equally good ones.

    Only settings at which sync completed count, as everywhere a gap is asked for. An arm that
    completed at none of them is left out. Sync comes first.
    """
    judged = [(setting, setting.losses or {}) for setting in tried]
    fair = [pair for pair in judged if pair[1].get("sync", math.inf) < math.inf]
    arms = dict.fromkeys(arm for _, losses in fair for arm in losses)
    best_settings: dict[str, TriedSetting] = {}
    for arm in sorted(arms, key=lambda arm: arm != "sync"):
        setting, losses = min(fair, key=lambda pair: pair[1][arm])
        if losses[arm] < math.inf:
            best_settings[arm] = setting
    return best_settings


def _space_at(point: GridPoint, search: Search) -> Space:
    """Return the space at a point, in values; raises BadInput for a key that no arm has there."""
    return {key: _axis(key, axis, point) for key, axis in search.space.items()}


def _axis(key: str, axis: Axis, point: GridPoint) -> tuple[float, float, bool] | list[Any]:
    where = f"sweep.search.space.{key}"
    in_arms = (value_of(config, key) for config in point.configs.values())
    value = next((value for value in in_arms if value is not None), None)
    if value is None or isinstance(value, dict):
        name = " ".join(point.overrides) or "every point"
        allowed = f"must be a key that has one value in some arm, and has none at {name}: "
        raise BadInput(where, axis, f"{allowed}search.space.{key}=null leaves it out")
    if isinstance(axis, list):
        return axis
    [(form, (low, high))] = axis.items()
    if form == "range":
        return low, high, False
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise BadInput(where, axis, f"must be a range: factors need a positive number, not {value}")
    return low * value, high * value, True


def _corners(space: Space) -> list[dict[str, Any]]:
    """Return settings at which every end and every choice occurs."""
    axes = {key: axis[:2] if isinstance(axis, tuple) else axis for key, axis in space.items()}
    longest = max(map(len, axes.values()))
    return [
        {key: axis[min(i, len(axis) - 1)] for key, axis in axes.items()} for i in range(longest)
    ]
