"""What a rank did when, by the host's clock or by CUDA events; a trace for Perfetto; costs."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import torch

from pipegap.trainer.schedules.operations import Op, Schedule
from pipegap.trainer.schedules.proof import Awaits, Costs, Timeline, key, simulate

LONGEST_TRACE = 50_000
"""Most spans that a rank keeps: viewers show a trace of that size with ease."""


class Span(NamedTuple):
    """An operation, a wait before one ("wait F"), or the reduction of a batch ("reduce").

    `start` and `end` are seconds since 1970, so the ranks of one machine can be compared.
    """

    kind: str
    stage: int
    batch: int
    microbatch: int
    start: float
    end: float


class Clock:
    """Adds up the time that operations take, and keeps the span of each while `is_tracing`."""

    def __init__(self, device: torch.device, is_tracing: bool) -> None:
        self._is_cuda, self._is_tracing = device.type == "cuda", is_tracing
        self._zero = self._now()
        # The wall clock at `_zero`: the ranks' own clocks begin anywhere.
        self._epoch = time.time() - self._seconds(self._now(), self._zero)
        self._open: list[tuple[str, Op, Any, Any]] = []
        self.spans: list[Span] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.elapsed = 0.0

    @property
    def bubble(self) -> float:
        """Share of the time between drains in which this rank ran no operation."""
        return 1 - self.share("F", "B", "I", "W", "U") if self.elapsed else 0.0

    def share(self, *kinds: str) -> float:
        """Share of the time between drains that went to spans of these kinds."""
        return sum(self.seconds[kind] for kind in kinds) / max(self.elapsed, 1e-9)

    @contextmanager
    def span(self, op: Op, kind: str = "") -> Iterator[None]:
        """Times the body of the context as `op`, or as the `kind` of work done for it."""
        start = self._now()
        yield
        self._open.append((kind or op.kind, op, start, self._now()))

    @contextmanager
    def between_drains(self) -> Iterator[None]:
        """Times a run of operations."""
        start = self._now()
        yield
        self.elapsed += self._seconds(self._now(), start)
        # Only now: to read a CUDA event earlier would make the host wait for the device.
        spans, self._open = self._open, []
        for kind, op, began, end in spans:
            self._keep(kind, op, self._seconds(began, self._zero), self._seconds(end, self._zero))

    def _keep(self, kind: str, op: Op, start: float, end: float) -> None:
        self.seconds[kind] += end - start
        if self._is_tracing and len(self.spans) < LONGEST_TRACE:
            start, end = self._epoch + start, self._epoch + end
            self.spans.append(Span(kind, op.stage, op.batch, op.microbatch, start, end))

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, end: Any, start: Any) -> float:
        if not self._is_cuda:
            return end - start
        end.synchronize()
        return start.elapsed_time(end) / 1000  # from milliseconds


Spans = Sequence[Sequence[Span]]
"""The spans of each rank, in the order in which they ended."""


def write_trace(path: Path, spans: Spans, num_ranks: int) -> None:
    """Writes `spans` in Chrome's trace format: one process per replica, two threads per rank, of
    which one shows the reductions.
    """
    zero = min((span.start for of_rank in spans for span in of_rank), default=0.0)
    events: list[dict[str, object]] = []
    for rank, of_rank in enumerate(spans):
        replica, place = divmod(rank, num_ranks)
        threads = {False: 2 * place, True: 2 * place + 1}
        for is_reducer, thread in threads.items():
            name = f"rank {place}" + (", reductions" if is_reducer else "")
            # M: metadata, which name and sort a thread; X: an event with a duration; times in µs.
            about = {"ph": "M", "pid": replica, "tid": thread}
            events.append({**about, "name": "thread_name", "args": {"name": name}})
            events.append({**about, "name": "thread_sort_index", "args": {"sort_index": thread}})
        events += [
            {
                "ph": "X",
                "name": f"{span.kind} of batch {span.batch}",
                "cat": span.kind,
                "pid": replica,
                "tid": threads[span.kind == "reduce"],
                "ts": round((span.start - zero) * 1e6, 1),
                "dur": round((span.end - span.start) * 1e6, 1),
                "args": {"stage": span.stage, "batch": span.batch, "microbatch": span.microbatch},
            }
            for span in of_rank
        ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")


def between(spans: Spans, first: int, last: int) -> list[list[Span]]:
    """The spans of batches first … last − 1."""
    return [[span for span in of_rank if first <= span.batch < last] for of_rank in spans]


def costs(spans: Spans) -> list[Costs]:
    """Mean seconds of an operation of each kind, one mapping per rank."""
    by_rank: list[Costs] = []
    for of_rank in spans:
        seconds = defaultdict(list)
        for span in of_rank:
            seconds[span.kind].append(span.end - span.start)
        by_rank.append({kind: mean(values) for kind, values in seconds.items()})
    return by_rank


def communication(spans: Spans, operations: Sequence[Sequence[Op]]) -> float:
    """Median seconds that a message takes, over the messages that a rank waited for.

    A message takes from the end of the operation that made it to the end of the wait for it. Only
    waits count that began before that operation ended. 0 if no rank waited.
    """
    ends, waits = {}, {}
    for of_rank in spans:
        for span in of_rank:
            where = span.stage, span.batch, span.microbatch
            ends[span.kind, *where] = span.end
            if span.kind.startswith("wait"):
                waits[span.kind[-1], *where] = span
    awaits = Awaits(operations)
    delays = []
    for op in (op for ops in operations for op in ops if op.kind in "FBI"):
        wait = waits.get((op.kind, *key(op)[1:]))
        for awaited in awaits(op):
            # A backward in halves sends after its input half, I.
            end = ends.get(awaited, ends.get(("I", *awaited[1:])))
            if wait is not None and end is not None and wait.start < end < wait.end:
                delays.append(wait.end - end)
    return median(delays) if delays else 0.0


def simulated(spans: Spans, schedule: Schedule, first: int, last: int) -> Timeline:
    """Simulates batches first … last − 1, from drain to drain, at the costs of `spans`."""
    operations = schedule.operations(first, last)
    return simulate(operations, costs(spans), communication(spans, operations))
