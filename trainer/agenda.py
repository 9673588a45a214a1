"""When a trial evaluates, saves, compares and observes, and so where it has to drain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Agenda:
    """All in updates; None: never. `phases` are the updates at which the schedule changes."""

    num_updates: int
    phases: Iterable[int]
    eval_every: int
    checkpoint_every: int
    compare_every: int | None
    observe_every: int | None

    def evaluates_after(self, num_done: int) -> bool:
        """Whether the validation loss is due, as it is at the end."""
        return num_done == self.num_updates or num_done % self.eval_every == 0

    def saves_after(self, num_done: int) -> bool:
        """Whether a checkpoint is due; the end needs none."""
        return num_done < self.num_updates and num_done % self.checkpoint_every == 0

    def compares(self, update: int) -> bool:
        """Whether the update is measured beside the one that a fresh gradient would have made."""
        return self.compare_every is not None and update % self.compare_every == 0

    def observes(self, update: int) -> bool:
        """Whether the optimizer asks to see more than the gradient before this update."""
        return self.observe_every is not None and update % self.observe_every == 0

    def drains(self, num_done: int) -> list[int]:
        """How many updates are done at each drain to come."""
        total, found = self.num_updates, {*self.phases}
        for every in (self.eval_every, self.checkpoint_every, self.observe_every):
            found.update(range(0, total, every or total))
        compared = range(0, total, self.compare_every or total)
        found.update(mark for t in compared if self.compares(t) for mark in (t, t + 1))
        return sorted(mark for mark in found if mark > num_done)
