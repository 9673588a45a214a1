"""What one driver may have to run: trials by id, and the queue of those that are left."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

from sweeps.cluster.queue import TrialQueue, in_order
from sweeps.request.expand import Trial
from sweeps.store.store import KnownTrials


class Work:
    """The trials of one driver, in an order of its own. `known`: see `SweepStore.trials`."""

    def __init__(self, known: KnownTrials) -> None:
        self._driver, self._known = uuid4().hex, known
        self.queue = TrialQueue(known)
        """Ids of the trials that are left."""

    def __getitem__(self, trial_id: str) -> Trial:
        return self._known[trial_id]

    def __len__(self) -> int:
        """How many trials are left, those that other drivers run included."""
        return len(self.queue)

    @property
    def left(self) -> list[Trial]:
        """The trials that are left, those that other drivers run included."""
        return [self[trial_id] for trial_id in self.queue]

    def add(self, trials: Iterable[Trial]) -> None:
        """Adds trials that have to run, unless they were added before."""
        new = {t.plan.trial_id: t for t in trials if t.plan.trial_id not in self.queue}
        for trial in new.values():
            self._known.add(trial)
        flops = {trial_id: trial.plan.flops for trial_id, trial in new.items()}
        self.queue.add(in_order(flops, self._driver))
