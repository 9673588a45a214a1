"""The throughput of two ranks, one core each, against a simulation with their measured times.

    python -m bench.bubbles [rounds=5] [slack=true]

Both schedules run in the same processes, the clip active at every update. The simulator is given
the mean time of each rank's F, B and U and the median time of a message, of the very same run. With
slack 2BW runs its forwards earlier, so that messages keep nobody waiting.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch.distributed as dist

from bench.pipelining import CPU, RANKS, prepare
from trainer.base.resources import reproducible
from trainer.executors.gradients import Update
from trainer.executors.pipelined import Pipelined
from trainer.parts import build_pipelined
from trainer.ranks.groups import Gang, Heartbeat, joined
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent
from trainer.tracing.trace import between, simulated

MICROBATCHES, MICROBATCHES_A_RUN = (2, 4, 8), 32


class Found(NamedTuple):
    """Seconds of one run from drain to drain; each rank's share of it spent waiting for updates."""

    measured: float
    simulated: float
    update_waits: tuple[float, ...]


class Contender:
    """A schedule on this rank, which trains on."""

    def __init__(self, gang: Gang, m: int, *words: str) -> None:
        config, parts = prepare(m, *words, "clip_norm=0.01", "trace=true")
        self._gang, self._schedule = gang, parts.schedule
        self._executor: Pipelined = build_pipelined(config, parts, gang)
        self._size = MICROBATCHES_A_RUN // m
        self._first = 0

    def run(self) -> Found | None:
        """Some batches; what was found, on the recording rank."""
        first, last = self._first, self._first + self._size
        self._first = last
        clock = self._executor._clock
        clock.spans.clear()
        dist.barrier()
        start = time.perf_counter()
        self._executor.run(first, last, _assert_clipped)
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


def _assert_clipped(update: Update) -> None:
    assert update.grad_norm > 0.01


def as_rank(
    store: dist.Store,
    heartbeat: Heartbeat,
    send: Callable[[object], None],
    rounds: int,
    schedules: Mapping[str, Sequence[str]],
) -> None:
    """Times each number of microbatches in turn, alternating between the two schedules."""
    with reproducible(0, 1), joined(store, heartbeat.rank, RANKS, 1, CPU, heartbeat, 600) as gang:
        for m in MICROBATCHES:
            contenders = {name: Contender(gang, m, *words) for name, words in schedules.items()}
            found: dict[str, list[Found]] = {name: [] for name in schedules}
            for turn in range(rounds + 1):  # the first one warms up
                for name, contender in contenders.items():
                    if (one := contender.run()) is not None and turn:
                        found[name].append(one)
            if gang.records:
                send((m, found))


def row(m: int, found: dict[str, Sequence[Found]]) -> str:
    """A line of the table."""
    flushed, delayed = found.values()
    pairs = zip(flushed, delayed, strict=True)
    speed_up = median(sync.measured / delay.measured for sync, delay in pairs)
    waits = median(max(one.update_waits) / one.measured for one in delayed)
    return (
        f"| {m} | {_of(flushed)} | {_of(delayed)} "
        f"| {speed_up:.2f} | {(m + RANKS - 1) / m:.2f} | {waits:.2%} |"
    )


def _of(found: Sequence[Found]) -> str:
    """Cells of the table: the time, and the throughput relative to the simulated one."""
    milliseconds = median(one.measured for one in found) / MICROBATCHES_A_RUN * 1e3
    return f"{milliseconds:.1f} | {median(one.simulated / one.measured for one in found):.3f}"


def main() -> None:
    """Prints the table."""
    given = dict(word.split("=") for word in sys.argv[1:])
    print(
        "| m | flushed 1F1B, ms per microbatch | throughput / simulated | 2BW, ms per microbatch "
        "| throughput / simulated | 2BW over flushed | ideal, (m + p − 1) / m | waits before U |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rounds = int(given.get("rounds", "5"))
    parent = Parent(lambda found: print(row(*found), flush=True), timeout=600)
    slack = f"pipeline.slack={given.get('slack', 'false')}"
    schedules = {"flushed": ("sync",), "2BW": ("pipedream_2bw", slack)}
    run_gang(as_rank, (rounds, schedules), RANKS, parent)


if __name__ == "__main__":
    main()
