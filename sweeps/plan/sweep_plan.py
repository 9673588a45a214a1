"""The plan of each sweep of a request, by the results that the store has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sweeps.plan import early_stop, tuning_report
from sweeps.plan.early_stop import Judged, judge
from sweeps.plan.longer import longer
from sweeps.plan.tuning import again, check_reach, tune_all
from sweeps.request.command_line import Request
from sweeps.request.expand import Trial, points, unique
from sweeps.request.schema import Sweep
from trainer.config.compose import Composer


@dataclass(frozen=True)
class SweepPlan:
    """The points of one sweep, as far as they are decided. Sweeps may share trials."""

    label: str
    sweep: Sweep
    points: list[Judged]

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

    def _longer(self, point: Judged) -> list[Trial]:
        """The longer runs at a point, which its report does not compare but the advice does."""
        if self.sweep.advice is None:
            return []
        return longer(self.sweep.advice, point.arms, point.tuned.point.plan)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to tune or to judge."""
        return all(point.settled for point in self.points)

    @property
    def compared(self) -> set[str]:
        """Ids of the trials in the report: the arms of settled points."""
        settled = [point for point in self.points if point.settled]
        return {trial.plan.trial_id for point in settled for trial in point.arms}

    @property
    def estimate(self) -> list[str]:
        """Lines on what a plan cannot know yet."""
        tuned = [point.tuned for point in self.points]
        lines = tuning_report.estimate(self.sweep, tuned)
        return [*lines, *early_stop.estimate(self.sweep, self.points)]

    @property
    def remarks(self) -> list[str]:
        """Lines on what was chosen and what was left out, and why."""
        tuned = [point.tuned for point in self.points]
        lines = tuning_report.remarks(self.sweep, tuned)
        return [*lines, *early_stop.remarks(self.sweep, self.points)]

    def refreshed(self) -> SweepPlan:
        """The plan by the results that the store has now."""
        if self.settled:
            return self
        tuned = again(self.sweep, [point.tuned for point in self.points])
        return replace(self, points=judge(self.sweep, tuned))


def plan_sweeps(asked: Request) -> list[SweepPlan]:
    """One plan per sweep. Raises BadInput for everything that can be known to be wrong with one."""
    compose = Composer()
    return [_plan_sweep(label, sweep, asked, compose) for label, sweep in asked.sweeps.items()]


def _plan_sweep(label: str, sweep: Sweep, asked: Request, compose: Composer) -> SweepPlan:
    swept = points(sweep, asked.results, compose, label)
    check_reach(sweep, swept)
    return SweepPlan(label, sweep, judge(sweep, tune_all(sweep, swept)))


def all_planned(sweeps: Iterable[SweepPlan]) -> list[Trial]:
    """The planned trials of all sweeps, each once, the longest first."""
    return unique(trial for sweep in sweeps for trial in sweep.planned)
