"""A run of a true pipeline beside the simulation of its schedule with its own measured times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist

from trainer.executors.gradients import Update
from trainer.executors.pipelined import Pipelined
from trainer.ranks.groups import Gang
from trainer.schedules.operations import Schedule
from trainer.tracing.trace import between, simulated


class Found(NamedTuple):
    """Seconds of one run from drain to drain; each rank's share of it spent waiting for updates."""

    measured: float
    simulated: float
    update_waits: tuple[float, ...]


class Traced:
    """A schedule on this rank, which trains on, `size` batches at a time.

    The executor's clock keeps spans. The simulator is given the mean time of each rank's F, B and U
    and the median time of a message, of the very same run.
    """

    def __init__(
        self,
        gang: Gang,
        schedule: Schedule,
        executor: Pipelined,
        size: int,
        on_update: Callable[[Update], None],
    ) -> None:
        self._gang, self._schedule, self._executor = gang, schedule, executor
        self._size, self._on_update, self._first = size, on_update, 0

    def run(self) -> Found | None:
        """Some batches; what was found, on the recording rank."""
        self._gang.heartbeat.beat()
        first, last = self._first, self._first + self._size
        self._first = last
        clock = self._executor._clock
        clock.spans.clear()
        dist.barrier()
        start = time.perf_counter()
        self._executor.run(first, last, self._on_update)
        dist.barrier()
        seconds = time.perf_counter() - start
        spans = self._gang.gather(clock.spans)
        if not spans:
            return None
        waits = tuple(
            sum(s.end - s.start for s in of_rank if s.kind == "wait U" and s.batch < last - 1)
            for of_rank in spans
        )
        expected = simulated(between(spans, first, last), self._schedule, first, last)
        return Found(seconds, expected.makespan, waits)


def in_turn(contenders: dict[str, Traced], rounds: int) -> dict[str, list[Found]]:
    """What each found in so many rounds after one that warms up; empty on other ranks."""
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            if (one := contender.run()) is not None and turn:
                found[name].append(one)
    return found
