"""The plan of each sweep of a request, by the results that the store has.

A sweep with a question also trains longer runs. In the time in which a synchronous pipeline makes T
updates, PipeDream-2BW makes more. What it gains is shown by delayed runs of that many updates,
against sync's runs of T. They are as long as the slowest pipeline allows, 1F1B: for what the others
allow, the advice interpolates. It compares these runs; the sweep's report does not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from sweeps.plan import early_stop, tried_report
from sweeps.plan.early_stop import JudgedPoint, judge
from sweeps.plan.preferred import (
    MICROBATCHES,
    gain_of_microbatches,
    recorded,
    require_all_compiled,
)
from sweeps.plan.searching import check_space, try_settings
from sweeps.plan.tried import Choice, untried
from sweeps.plan.tuning import check_reach, tune_all
from sweeps.request.command_line import Request, changed
from sweeps.request.expand import Trial, points, unique
from sweeps.request.schema import Sweep, keys
from trainer.base.errors import BadInput
from trainer.config.compose import Composer
from trainer.config.schema import validate
from trainer.store.snapshot import Snapshot

NEARLY = 1e-6
"""Updates: the rounding error of a simulated ratio."""


@dataclass(frozen=True)
class SweepPlan:
    """The points of one sweep, as far as they are decided. Sweeps may share trials."""

    label: str
    sweep: Sweep
    points: list[JudgedPoint]
    added: tuple[str, ...] = ()
    """Overrides that the sweep prefers and that were added."""
    gain: str = ""
    """What the plan says for them, in words."""
    not_added: str = ""
    """Why overrides that the sweep prefers were not added, in a line."""

    @property
    def runnable(self) -> list[Trial]:
        """The trials that can run now."""
        longer = [trial for point in self.points if point.settled for trial in self._longer(point)]
        return [*(trial for point in self.points for trial in point.runnable), *longer]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known."""
        longer = [trial for point in self.points for trial in self._longer(point)]
        return [*(trial for point in self.points for trial in point.planned), *longer]

    def _longer(self, point: JudgedPoint) -> list[Trial]:
        """Return the longer runs at a point; none without a question or where 2BW gains no time."""
        question = self.sweep.advice
        if question is None:
            return []
        factor = speed_up(question.stages, question.microbatches)
        trials = [trial for trial in point.arms if trial.arm in question.arms and factor > 1]
        return [_lengthened(trial, factor, point.choice) for trial in trials]

    @property
    def choices(self) -> list[Choice]:
        """The points with the settings that were tried there."""
        return [point.choice for point in self.points]

    @property
    def settled(self) -> bool:
        """Whether nothing is left to choose or to judge."""
        return all(point.settled for point in self.points)

    @property
    def compared(self) -> set[str]:
        """Ids of the trials in the report: the arms of settled points."""
        settled = [point for point in self.points if point.settled]
        return {trial.plan.trial_id for point in settled for trial in point.arms}

    @property
    def estimate(self) -> list[str]:
        """Lines on what a plan cannot know yet."""
        tried = tried_report.estimate(self.sweep, self.choices)
        return [*tried, *early_stop.estimate(self.sweep, self.points)]

    @property
    def remarks(self) -> list[str]:
        """Lines on what was chosen and what was left out, and why."""
        tried = tried_report.remarks(self.sweep, self.choices)
        return [*tried, *early_stop.remarks(self.sweep, self.points)]

    def refreshed(self, seen: Snapshot) -> "SweepPlan":
        """Return the plan by the results that were seen."""
        if self.settled:
            return self
        return replace(self, points=_decided(self.sweep, self.choices, seen))


def plan_sweeps(request: Request, seen: Snapshot | None = None) -> list[SweepPlan]:
    """Return one plan per sweep, by the results that were seen, or that the store has now; raises
    BadInput for everything that can be known to be wrong."""
    compose = Composer(if_there=request.if_there)
    now = seen or Snapshot()
    sweeps = request.sweeps.items()
    return [_as_preferred(label, sweep, request, compose, now) for label, sweep in sweeps]


def _as_preferred(
    label: str, sweep: Sweep, request: Request, compose: Composer, seen: Snapshot
) -> SweepPlan:
    """Return the plan with the overrides that the sweep prefers, or else without them.

    Raises BadInput as well if the sweep was begun with them and cannot go on so here.
    """
    words = sweep.prefer
    if not words:
        return _plan_sweep(label, sweep, request, compose, seen)
    compose(words)  # a word that no trial allows is a mistake, and no reason to go without it
    was_added = recorded(words, request.results, label)
    why = f"the record of {label} has none"
    if was_added is not False:
        try:
            plan = _plan_sweep(label, changed(sweep, words), request, compose, seen)
            require_all_compiled(plan.planned)
            gain = "" if was_added else _gain(plan, sweep, request, compose)
            return replace(plan, added=tuple(words), gain=gain)
        except BadInput as error:
            if was_added:
                allowed = f"{error.allowed}: the sweep was begun with {' '.join(words)}"
                raise BadInput(error.key, error.value, allowed) from None
            why = str(error)
    plan = _plan_sweep(label, sweep, request, compose, seen)
    return replace(plan, not_added=f"{' '.join(words)} is not added: {why}")


def _gain(plan: SweepPlan, sweep: Sweep, request: Request, compose: Composer) -> str:
    """Return what is gained by the microbatches that the sweep prefers; empty if it prefers none.

    Raises BadInput if nothing is.
    """
    if MICROBATCHES not in keys(sweep.prefer):
        return ""
    own = points(sweep, request.results, compose, plan.label)
    preferred = [choice.point for choice in plan.choices]
    return gain_of_microbatches(sweep, own, preferred, request.gpus_per_trial)


def _plan_sweep(
    label: str, sweep: Sweep, request: Request, compose: Composer, seen: Snapshot
) -> SweepPlan:
    swept = points(sweep, request.results, compose, label)
    if sweep.search is None:
        check_reach(sweep, swept)
    else:
        check_space(sweep.search, swept)
    return SweepPlan(label, sweep, _decided(sweep, [*map(untried, swept)], seen))


def _decided(sweep: Sweep, choices: Sequence[Choice], seen: Snapshot) -> list[JudgedPoint]:
    return judge(sweep, choose(sweep, choices, seen), seen)


def choose(sweep: Sweep, choices: Sequence[Choice], seen: Snapshot) -> list[Choice]:
    """Return the choices by the results that were seen; settled ones stay."""
    if sweep.search is None:
        return tune_all(sweep, choices, seen)
    search = sweep.search
    return [
        choice if choice.settled else try_settings(sweep, search, choice.point, seen)
        for choice in choices
    ]


def all_planned(sweeps: Iterable[SweepPlan]) -> list[Trial]:
    """Return the planned trials of all sweeps, each once, the longest first."""
    return unique(trial for sweep in sweeps for trial in sweep.planned)


@cache
def speed_up(stages: int, microbatches: int) -> float:
    """Return how many batches 2BW makes in the time of one of 1F1B, if their stages are equal."""
    from analysis.advice import speed

    return speed.speed_up(speed.equal_stages(stages), microbatches)


def _lengthened(trial: Trial, factor: float, choice: Choice) -> Trial:
    num_updates = ceil(trial.plan.num_updates * factor - NEARLY)
    length = {"num_updates": num_updates, "tokens_per_parameter": None}
    config = validate({**trial.config, **length})
    setting = f"{trial.setting} num_updates={num_updates}".strip()
    return Trial(trial.arm, config, choice.point.plan(config), setting, trial.sweeps)
