"""A request's sweeps, planned by what their store has at one moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pipegap.sweeps.plan.devices import compiler_seconds, occupied
from pipegap.sweeps.plan.paces import Prices
from pipegap.sweeps.plan.sweep_plan import SweepPlan, all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import Request
from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.store.snapshot import Snapshot
from pipegap.trainer.store.store import SweepStore


@dataclass(frozen=True)
class Round:
    """What is planned, done and to do. Every number of a round is of the same `seen` results."""

    request: Request
    store: SweepStore
    seen: Snapshot
    sweeps: Sequence[SweepPlan]

    @classmethod
    def first(cls, request: Request, store: SweepStore) -> "Round":
        """Return the round of now; raises BadInput for what can be known to be wrong."""
        store.pull()
        seen = Snapshot()
        return cls(request, store, seen, plan_sweeps(request, seen))

    def again(self) -> "Round":
        """Return the round of now, after this one. Raises StoreAway."""
        self.store.pull()
        seen = self.seen.again()
        return replace(self, seen=seen, sweeps=[sweep.refreshed(seen) for sweep in self.sweeps])

    @property
    def title(self) -> str:
        """The labels of its sweeps, for people."""
        return ", ".join(sweep.label for sweep in self.sweeps)

    @cached_property
    def planned(self) -> list[Trial]:
        """All trials, as far as they are known, each once, the longest first."""
        return all_planned(self.sweeps)

    @cached_property
    def todo(self) -> list[Trial]:
        """The planned trials that have to run."""
        return [trial for trial in self.planned if self.seen.finished(trial) is None]

    @property
    def runnable(self) -> list[Trial]:
        """Those of them that can run now."""
        ids = {trial.trial_id for sweep in self.sweeps for trial in sweep.runnable}
        return [trial for trial in self.todo if trial.trial_id in ids]

    @cached_property
    def prices(self) -> Prices:
        """The seconds of a trial, by the finished ones."""
        return Prices(self.request.results, self.planned, self.seen)

    @cached_property
    def expected(self) -> Expected:
        """What each planned trial takes, and the compiler before those to do."""
        gpus = self.request.gpus_per_trial
        seconds = {t.trial_id: self.prices.seconds(t, occupied(t, gpus)) for t in self.planned}
        return Expected(seconds, compiler_seconds(self.todo))
