"""Simulates how long a schedule takes if its operations take given times. Pure data, no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.proof import Awaits, Key, interleave, key

Costs = Mapping[str, float]
"""Time of an operation of each kind."""
SETTLED = 2
"""Batches until a pipeline is in its steady state; its time is measured over as many more."""


@dataclass(frozen=True)
class Timeline:
    """`spans[r]` are (operation, start, end) of rank r, in the unit of the costs."""

    spans: list[list[tuple[Op, float, float]]]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(end for spans in self.spans for _, _, end in spans)

    @property
    def bubble(self) -> float:
        """Share of the makespan in which a rank waits, averaged over the ranks."""
        busy = sum(end - start for spans in self.spans for _, start, end in spans)
        return 1 - busy / (len(self.spans) * self.makespan)

    def peak_activations(self, rank: int) -> int:
        """The largest number of microbatches that are between forward and backward on `rank`.

        Each counts once per chunk. A backward in halves ends with the half for the weights.
        """
        alive = peak = 0
        for op, _, _ in self.spans[rank]:
            alive += {"F": 1, "B": -1, "I": 0, "W": -1, "U": 0}[op.kind]
            peak = max(peak, alive)
        return peak


def simulate(
    operations: Sequence[Sequence[Op]], costs: Sequence[Costs], communication: float = 0.0
) -> Timeline:
    """Runs the ranks' lists with the `costs` of each rank's operations.

    A result reaches another rank `communication` units later. Raises ValueError on a deadlock.
    """
    awaits = Awaits(operations)
    ends: dict[Key, tuple[int, float]] = {}
    free = [0.0] * len(operations)
    spans: list[list[tuple[Op, float, float]]] = [[] for _ in operations]
    for rank, op in interleave(operations):
        needed = (ends[other] for other in awaits(op))
        arrivals = (end + (communication if by != rank else 0.0) for by, end in needed)
        start = max([free[rank], *arrivals])
        free[rank] = start + costs[rank][op.kind]
        spans[rank].append((op, start, free[rank]))
        ends[key(op)] = rank, free[rank]
    return Timeline(spans)


def steady(
    schedule: Schedule, costs: Sequence[Costs], communication: float = 0.0
) -> tuple[float, Timeline]:
    """What one more batch adds to a long run without phases, and the start of that run.

    The arguments are as in `simulate`, with the schedule in place of its operations.
    """
    whole = replace(schedule, num_updates=2 * SETTLED, first_delayed=0, first_cooldown=2 * SETTLED)
    start, longer = (
        simulate(whole.operations(0, last), costs, communication) for last in (SETTLED, 2 * SETTLED)
    )
    return (longer.makespan - start.makespan) / SETTLED, start
