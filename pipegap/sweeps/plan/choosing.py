"""Chooses settings for each point of a sweep, by tuning or by a search, before its arms run there;
and tells what it tried."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipegap.sweeps.request.expand import GridPoint, Trial, value_of
from pipegap.sweeps.request.schema import Axis, Search, Sweep, keys
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import is_number
from pipegap.trainer.store.snapshot import Snapshot

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


# Tuning trains the sync arm alone, with the sweep's first seed or with a seed that compares
# nothing, at every combination of the factors on the values that the point has; the keys of
# `tuning.inverse` are divided by the factors. The combination with the lowest final validation
# loss wins; a diverged trial is worse than any other. If the best value of a key is the first or
# the last one of its grid, the grid is extended by one value at the same ratio, until the best
# value lies inside, or the last step gained less than seeds differ by, or for MAX_BEYOND values.
# Where every combination diverged, the grid is extended downwards. With `shared: X` only the
# points of the optimizer X are tuned, and the other points take the values chosen there (the
# paper's protocol), except points that set a tuned key themselves.
#
# A search has a sampler and a budget. Every arm trains each setting that the sampler proposes, at
# the seeds reserved for choosing, so that every pair is complete: Optuna gets the mean final loss
# over the arms, which is infinite if an arm diverged. When the budget is spent, each arm chooses
# the setting with its lowest mean loss, among the settings at which sync completed. All arms then
# run at all chosen settings, at the sweep's own seeds, which no choice has seen.
#
# The store alone determines every choice: a sweep that was killed chooses the same when it
# resumes.

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
    losses: dict[str, float] | None = field(compare=False)  # a loss alone changes no plan
    """Arm → mean final loss, infinite if it diverged; None while a trial has to run."""
    machines: frozenset[str] = field(default=frozenset(), compare=False)
    """The kinds of device and versions of torch that these trials ran on."""


@dataclass(frozen=True)
class Choice:
    """A point, the settings that were tried there, and those that were chosen."""

    point: GridPoint
    tried: Sequence[TriedSetting] = ()
    """The settings, ascending by value where keys are tuned, else in the order of the proposals."""
    settled: bool = False
    """Whether nothing is left to try."""
    best_of_arms: Mapping[str, TriedSetting] = field(default_factory=dict)
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
        settings = [*self.best_of_arms.values()]
        if not self.settled:
            settings = [self.tried[len(self.tried) // 2]]
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
    results = filter(None, map(snapshot.finished, trials))
    machines = frozenset(
        f"{result.get('device_name')}, torch {result.get('versions', {}).get('torch')}"
        for result in results
    )
    return TriedSetting(dict(values), point_there, trials, losses, machines)


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
    start, most = _start(sweep.tune, point), MAX_EXTENSIONS
    # The outermost factors that tuning may reach: if these are valid, so are all between them.
    ends = [
        (f[0] * (f[0] / f[1]) ** most, f[-1] * (f[-1] / f[-2]) ** most) for f in sweep.tune.values()
    ]
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
    # After all leaders: a point may follow one that comes later in the grid.
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
    # The grid is a product: each setting occurs with each optimizer, and so has a leader.
    return [
        i if {*keys(axis_words)} & {*sweep.tune} else leaders[setting]
        for i, (axis_words, setting) in enumerate(words)
    ]


def _follow(sweep: Sweep, point: GridPoint, leader: Choice) -> Choice:
    """Return the choice at a point that takes the values of another one."""
    arms = leader.arms_at(point, sweep.seeds)
    return Choice(point, [], leader.settled, leader.best_of_arms, arms, leader.point)


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
    """Return the values of the lowest loss, the smallest of equally good ones; None if no trial
    completed."""
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
        if not is_number(value) or value == 0:
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
        values = (_rounded(space, proposal.params) for proposal in proposed)
        settings = [try_at(point, of, search.seeds, snapshot) for of in values]
        tried += settings
        losses = [setting.losses for setting in settings]
        # Optuna is told all losses of a group of proposals, or none: in another order, or with
        # some missing, it would propose other settings when the sweep resumes.
        if None in losses:
            return Choice(point, tried, arms=point.trials(sweep.seeds))
        for proposal, of_arms in zip(proposed, losses, strict=True):
            study.tell(proposal, fmean((of_arms or {}).values()))
    best_of_arms = _best_of_arms(tried)
    arms = [t for setting in best_of_arms.values() for t in setting.point.trials(sweep.seeds)]
    # Two arms may have the same best setting.
    return Choice(point, tried, True, best_of_arms, [*{t.trial_id: t for t in arms}.values()])


def _study(search: Search, space: Space) -> "tuple[optuna.Study, dict[str, BaseDistribution]]":
    """Return a new study by Optuna's TPE, and what it may draw for each key.

    A study that is asked in the same order and told the same losses proposes the same settings
    again. Raises BadInput if Optuna is not installed.
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
    # The study keeps the number that it proposed: only the trials get the rounded one.
    return {
        key: float(f"{number:.{DIGITS}g}") if isinstance(space[key], tuple) else number
        for key, number in proposed.items()
    }


def _best_of_arms(tried: Sequence[TriedSetting]) -> dict[str, TriedSetting]:
    """Return, for each arm, the setting of its lowest loss, the first of equally good ones.

    Only settings at which sync completed count, since no other setting has a gap. An arm that
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
    if not is_number(value) or value <= 0:
        raise BadInput(where, axis, f"must be a range: factors need a positive number, not {value}")
    return low * value, high * value, True  # factors: log-uniform


def _corners(space: Space) -> list[dict[str, Any]]:
    """Return settings at which every end and every choice occurs."""
    axes = {key: axis[:2] if isinstance(axis, tuple) else axis for key, axis in space.items()}
    longest = max(map(len, axes.values()))
    return [
        {key: axis[min(i, len(axis) - 1)] for key, axis in axes.items()} for i in range(longest)
    ]


# How people are told what a sweep tried and chose: in lines, and in a table of tried settings.


def remarks(sweep: Sweep, choices: Sequence[Choice]) -> list[str]:
    """Return how settings were chosen, then lines per point; nothing if nothing is tried."""
    mixed = [
        f"{_name(sweep, choice.point)}: trials of several kinds of machine chose, and these round "
        f"otherwise: {' and '.join(sorted(machines))}"
        for choice in choices
        if len(machines := {name for setting in choice.tried for name in setting.machines}) > 1
    ]
    if sweep.search is not None:
        lines = (line for choice in choices for line in _search_lines(sweep, sweep.search, choice))
        return [_how_searched(sweep.search), *lines, *mixed]
    if sweep.tune:
        return [_how_tuned(sweep), *(_tune_line(sweep, choice) for choice in choices), *mixed]
    return []


def estimate(sweep: Sweep, choices: Sequence[Choice]) -> list[str]:
    """Return lines on what a plan cannot know yet."""
    num_open = sum(not choice.settled for choice in choices)
    if not num_open:
        return []
    still_open = f"at {num_open} of {len(choices)} points: their arms are priced at"
    if sweep.search is not None:
        num_left = sum(sweep.search.budget - len(choice.tried) for choice in choices)
        trials = num_left * len(sweep.arms) * len(sweep.search.seeds)
        return [
            f"search    nothing is chosen yet {still_open} one setting, of up to "
            f"{len(sweep.arms)}; {trials} further trials, at settings that are not proposed yet, "
            "are not counted"
        ]
    return [
        f"tune      {_keys_are(sweep)} not chosen yet {still_open} the middle of the tried values, "
        "further values are not counted"
    ]


def write(sweep: Sweep, choices: Sequence[Choice], out: Path) -> Iterator[str]:
    """Write one row per tried setting to tuned.csv or searched.csv; yield a line that says so.

    The columns are `point`, the keys, the losses (missing if the trial diverged or has not
    finished) and what was chosen. Nothing is written if nothing is tried.
    """
    search = sweep.search
    if search is not None:
        keys, arms, name, what = [*search.space], [*sweep.arms], "searched.csv", "setting"
        head = ["point", "proposed", *keys, *(f"loss {arm}" for arm in arms), "best of"]
    elif sweep.tune:
        keys, arms = [*sweep.tune, *sweep.tuning.inverse], ["sync"]
        name, what = "tuned.csv", f"value of {_keys(sweep)}"
        head = ["point", *keys, "loss", "chosen"]
    else:
        return
    rows = [
        [
            *(_name(sweep, choice.point), *([number] if search else [])),
            *(setting.values[key] for key in keys),
            *(_finite(setting, arm) for arm in arms),
            " ".join(best_of) if search else bool(best_of),  # arms; or whether it is chosen
        ]
        for choice in choices
        for number, setting in enumerate(choice.tried)
        for best_of in [[arm for arm, best in choice.best_of_arms.items() if best is setting]]
    ]
    out.mkdir(parents=True, exist_ok=True)
    with (out / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    yield f"in {out}: {name}, every {what} that was tried"


def _finite(setting: TriedSetting, arm: str) -> float | None:
    """Return the loss of an arm; None if it diverged or has not finished."""
    loss = (setting.losses or {}).get(arm, math.inf)
    return None if loss == math.inf else loss


def _how_searched(search: Search) -> str:
    return (
        f"{', '.join(search.space)}: {search.budget} settings that Optuna proposes are tried at "
        f"each point, in every arm, at seed {', '.join(map(str, search.seeds))}; the lowest mean "
        "final loss of an arm there chooses its setting, at which all arms are compared at the "
        "seeds of the sweep"
    )


def _search_lines(sweep: Sweep, search: Search, choice: Choice) -> Iterator[str]:
    name = _name(sweep, choice.point)
    if not choice.settled:
        yield f"{name}: nothing is chosen yet ({len(choice.tried)} of {search.budget} proposed)"
    elif not choice.best_of_arms:
        yield f"{name} is left out: its sync arm diverged at every setting tried"
    for arm, setting in choice.best_of_arms.items():
        words = " ".join(f"{key}={value}" for key, value in setting.values.items())
        loss = (setting.losses or {})[arm]
        yield f"{name}: best of {arm} is {words} ({loss:.4f} at the seeds of choice)"


def _how_tuned(sweep: Sweep) -> str:
    where = "each point" if sweep.shared is None else f"{sweep.shared}, and shared by all others,"
    seed, inverse_keys = sweep.tuning.seed, " and ".join(sweep.tuning.inverse)
    lowest = "by the lowest final validation loss of its sync arm"
    by = f"{_keys_are(sweep)} chosen for {where} {lowest}"
    product = f"; {inverse_keys} is divided by the same factor" if inverse_keys else ""
    if seed is not None:
        return f"{by} at seed {seed}, which compares nothing{product}"
    return (
        f"{by} at seed {sweep.seeds[0]} alone{product}. That trial is compared below too: the "
        "choice favours sync at that seed"
    )


def _tune_line(sweep: Sweep, choice: Choice) -> str:
    tried = ", ".join(
        f"{' '.join(f'{value:g}' for value in setting.values.values())}: {_loss(setting)}"
        for setting in choice.tried
    )
    leader = choice.leader
    source = f"tried {tried}" if leader is None else f"as of {_name(sweep, leader)}"
    name = _name(sweep, choice.point)
    if not choice.settled:
        return f"{name}: {_keys_are(sweep)} not chosen yet ({source})"
    if not choice.best_of_arms:
        return f"{name} is left out: its sync arm diverged at every {_keys(sweep)} tried ({source})"
    setting = choice.best_of_arms["sync"]
    words = " ".join(f"{key}={value:g}" for key, value in setting.values.items())
    note = _edge_note(setting, choice.tried) if choice.tried else ""
    return f"{name}: {words}{note} ({source})"


def _edge_note(setting: TriedSetting, tried: Sequence[TriedSetting]) -> str:
    """Why tuning ended where a value is the smallest or largest of its key that was tried; empty if
    each lies inside."""
    losses = {tuple(of.values.values()): (of.losses or {}).get("sync") for of in tried}
    winner = tuple(setting.values.values())
    axes = zip(*losses, strict=True)
    gains = [
        edge_gain(losses, winner, key)
        for key, axis in enumerate(axes)
        if winner[key] in (min(axis), max(axis))
    ]
    if not gains:
        return ""
    if max(gains) < LEAST_GAIN:
        why = f"the last step gained {max(gains):.4f}, less than seeds differ by ({LEAST_GAIN:g})"
    else:
        why = "no more values are tried"
    return f", on the edge of what was tried: {why}"


def _keys(sweep: Sweep) -> str:
    return " and ".join(sweep.tune)


def _keys_are(sweep: Sweep) -> str:
    return f"{_keys(sweep)} {'is' if len(sweep.tune) == 1 else 'are'}"


def _loss(setting: TriedSetting) -> str:
    if setting.losses is None:
        return "not run"
    loss = _finite(setting, "sync")
    return "diverged" if loss is None else f"{loss:.4f}"


def _name(sweep: Sweep, point: GridPoint) -> str:
    """Return the point's overrides without the keys that are tuned."""
    words = [word for word in point.overrides if word.split("=")[0] not in sweep.tune]
    return " ".join(words) or "every trial"
