"""How long a schedule takes when its operations take given times. Pure data, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.interleave import awaited, interleave
from trainer.schedules import Op


@dataclass(frozen=True)
class Timeline:
    """`spans[s]` are (operation, start, end) of stage s, in the unit of the costs."""

    spans: list[list[tuple[Op, float, float]]]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(end for stage in self.spans for _, _, end in stage)

    @property
    def bubble(self) -> float:
        """Share of the makespan that stages wait, averaged over them."""
        busy = sum(end - start for stage in self.spans for _, start, end in stage)
        return 1 - busy / (len(self.spans) * self.makespan)

    def peak_activations(self, stage: int) -> int:
        """Most microbatches whose forward is done and whose backward is not, on `stage`."""
        alive = peak = 0
        for op, _, _ in self.spans[stage]:
            alive += {"F": 1, "B": -1, "U": 0}[op.kind]
            peak = max(peak, alive)
        return peak


def simulate(
    operations: Sequence[Sequence[Op]], costs: Mapping[str, float], communication: float = 0.0
) -> Timeline:
    """Runs the lists with `costs` for F, B and U; a result reaches another stage later by
    `communication`. Raises ValueError if the lists deadlock.
    """
    ends: dict[tuple[str, int, int, int], float] = {}
    free = [0.0] * len(operations)
    spans: list[list[tuple[Op, float, float]]] = [[] for _ in operations]
    for stage, op in interleave(operations):
        arrivals = (
            ends[key] + (communication if key[1] != stage else 0.0)
            for key in awaited(stage, op, len(operations))
        )
        start = max([free[stage], *arrivals])
        free[stage] = start + costs[op.kind]
        spans[stage].append((op, start, free[stage]))
        ends[op.kind, stage, op.batch, op.microbatch] = free[stage]
    return Timeline(spans)
