"""When a trial evaluates, saves, compares and observes, and therefore has to drain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby


@dataclass(frozen=True)
class Agenda:
    """Every number is in updates, and None means never. The schedule changes at `phases`."""

    num_updates: int
    phases: Iterable[int]
    eval_every: int
    checkpoint_every: int
    compare_every: int | None
    observe_every: int | None

    def evaluates_after(self, num_done: int) -> bool:
        """Whether the validation loss is due after `num_done` updates; at the end it always is."""
        return num_done == self.num_updates or num_done % self.eval_every == 0

    def saves_after(self, num_done: int) -> bool:
        """Whether a checkpoint is due after `num_done` updates; none is at the end."""
        return num_done < self.num_updates and num_done % self.checkpoint_every == 0

    def compares(self, update: int) -> bool:
        """Whether `update` is compared with the one that a fresh gradient would make."""
        return self.compare_every is not None and update % self.compare_every == 0

    def observes(self, update: int) -> bool:
        """Whether the optimizer needs more than the gradient before `update`."""
        return self.observe_every is not None and update % self.observe_every == 0

    def drains(self, num_done: int) -> Iterator[int]:
        """For each drain after `num_done` updates, how many updates are done then; ascending."""
        marks = merge(
            sorted(self.phases),
            self._each(self.eval_every),
            self._each(self.checkpoint_every),
            self._each(self.observe_every),
            self._each(self.compare_every),
            (update + 1 for update in self._each(self.compare_every)),
        )
        yield from (mark for mark, _ in groupby(marks) if mark > num_done)

    def _each(self, every: int | None) -> Iterable[int]:
        return range(0, self.num_updates, every) if every is not None else ()
