"""What a rank did when, by the host's clock or by CUDA events."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from pipegap.trainer.schedules.operations import Op

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
        spans, self._open = self._open, []
        for kind, op, began, ended in spans:
            self._keep(kind, op, self._seconds(began, self._zero), self._seconds(ended, self._zero))

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

    def _seconds(self, now: Any, before: Any) -> float:
        if not self._is_cuda:
            return now - before
        now.synchronize()
        return before.elapsed_time(now) / 1000
