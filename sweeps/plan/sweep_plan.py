"""How far the sweeps of a request are, by what the store says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sweeps import early_stop, tuning_report
from sweeps.early_stop import Judged, judge
from sweeps.expand import Trial, points, unique
from sweeps.request import Request
from sweeps.schema import Sweep
from sweeps.tune import check_reach, tune
from trainer.compose import Composer


@dataclass(frozen=True)
class Standing:
    """One sweep: what is known of its points. Its trials may be those of another sweep too."""

    label: str
    sweep: Sweep
    points: list[Judged]

    @property
    def known(self) -> list[Trial]:
        """The trials that can run now."""
        return [trial for point in self.points for trial in point.known]

    @property
    def planned(self) -> list[Trial]:
        """All trials, as far as they can be told."""
        return [trial for point in self.points for trial in point.planned]

    @property
    def settled(self) -> bool:
        """Whether nothing is left to tune or to judge."""
        return all(point.settled for point in self.points)

    @property
    def compared(self) -> set[str]:
        """Ids of the trials that the report is of."""
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
        """What was chosen and what was left out, and why."""
        tuned = [point.tuned for point in self.points]
        lines = tuning_report.remarks(self.sweep, tuned)
        return [*lines, *early_stop.remarks(self.sweep, self.points)]

    def again(self) -> Standing:
        """By what the store says now."""
        if self.settled:
            return self
        tuned = [
            point.tuned if point.tuned.settled else tune(self.sweep, point.tuned.point)
            for point in self.points
        ]
        return replace(self, points=judge(self.sweep, tuned))


def look(asked: Request) -> list[Standing]:
    """All that can be known to be wrong with a sweep is found here: raises BadInput."""
    compose = Composer()
    return [_look(label, sweep, asked, compose) for label, sweep in asked.sweeps.items()]


def _look(label: str, sweep: Sweep, asked: Request, compose: Composer) -> Standing:
    swept = points(sweep, asked.results, compose)
    check_reach(sweep, swept)
    return Standing(label, sweep, judge(sweep, [tune(sweep, point) for point in swept]))


def all_planned(sweeps: Iterable[Standing]) -> list[Trial]:
    """The planned trials of all sweeps, each once, the longest first."""
    return unique(trial for sweep in sweeps for trial in sweep.planned)
