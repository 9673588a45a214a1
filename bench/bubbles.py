"""The throughput of two ranks, one core each, against a simulation with their measured times.

    python -m bench.bubbles [rounds=5] [slack=true]

Both schedules run in the same processes, the clip active at every update. The simulator is given
the mean time of each rank's F, B and U and the median time of a message, of the very same run. With
slack 2BW runs its forwards earlier, so that messages keep nobody waiting.
"""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import torch.distributed as dist

from bench.ranks import RANKS, Send, on_ranks, prepare
from bench.timing import options
from trainer.executors.gradients import Update
from trainer.parts import build_pipelined
from trainer.ranks.collect import collect
from trainer.ranks.groups import Gang
from trainer.tracing.trace import between, simulated

MICROBATCHES, MICROBATCHES_A_RUN = (2, 4, 8), 32


class TracedRun(NamedTuple):
    """Seconds of one run from drain to drain; each rank's share of it spent waiting for updates."""

    measured: float
    simulated: float
    update_waits: tuple[float, ...]


class TracedSchedule:
    """A schedule with m microbatches on this rank, with an active clip, which trains on."""

    def __init__(self, gang: Gang, m: int, *words: str) -> None:
        config, parts = prepare(m, *words, "clip_norm=0.01", "trace=true")
        self._executor = build_pipelined(config, parts, gang)
        self._gang, self._schedule = gang, parts.schedule
        self._size, self._first = MICROBATCHES_A_RUN // m, 0

    def run(self) -> TracedRun | None:
        """Trains on some batches; returns their times on the recording rank, None on others."""
        self._gang.heartbeat.beat()
        first, last = self._first, self._first + self._size
        self._first = last
        clock = self._executor._clock
        clock.spans.clear()
        dist.barrier()
        start = time.perf_counter()
        self._executor.run(first, last, _assert_clipped)
        dist.barrier()
        seconds = time.perf_counter() - start
        spans = [*collect(self._gang, [clock.spans])]
        if not spans:
            return None
        waits = tuple(
            sum(s.end - s.start for s in of_rank if s.kind == "wait U" and s.batch < last - 1)
            for of_rank in spans
        )
        expected = simulated(between(spans, first, last), self._schedule, first, last)
        return TracedRun(seconds, expected.makespan, waits)


def _assert_clipped(update: Update) -> None:
    assert update.grad_norm > 0.01


def compare(gang: Gang, send: Send, rounds: int, schedules: Mapping[str, Sequence[str]]) -> None:
    """Times each number of microbatches, alternating between the two schedules, after a round that
    warms up."""
    for m in MICROBATCHES:
        contenders = {name: TracedSchedule(gang, m, *words) for name, words in schedules.items()}
        runs: dict[str, list[TracedRun]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            for name, contender in contenders.items():
                if (run := contender.run()) is not None and turn:
                    runs[name].append(run)
        if gang.records:
            send((m, runs))


def row(m: int, runs: Mapping[str, Sequence[TracedRun]]) -> str:
    """A line of the table."""
    flushed, delayed = runs.values()
    pairs = zip(flushed, delayed, strict=True)
    speed_up = median(sync.measured / delay.measured for sync, delay in pairs)
    waits = median(max(run.update_waits) / run.measured for run in delayed)
    return (
        f"| {m} | {_cells(flushed)} | {_cells(delayed)} "
        f"| {speed_up:.2f} | {(m + RANKS - 1) / m:.2f} | {waits:.2%} |"
    )


def _cells(runs: Sequence[TracedRun]) -> str:
    """Cells of the table: the time, and the throughput relative to the simulated one."""
    milliseconds = median(run.measured for run in runs) / MICROBATCHES_A_RUN * 1e3
    return f"{milliseconds:.1f} | {median(run.simulated / run.measured for run in runs):.3f}"


def main() -> None:
    """Prints the table."""
    given = options(rounds=5, slack="false")
    print(
        "| m | flushed 1F1B, ms per microbatch | throughput / simulated | 2BW, ms per microbatch "
        "| throughput / simulated | 2BW over flushed | ideal, (m + p − 1) / m | waits before U |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    schedules = {"flushed": ("sync",), "2BW": ("pipedream_2bw", f"pipeline.slack={given.slack}")}
    on_ranks(compare, (given.rounds, schedules), lambda runs: print(row(*runs), flush=True))


if __name__ == "__main__":
    main()
