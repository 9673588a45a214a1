"""What every rank of a pipeline did when, kept for the trace and the timeline that a trial has."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from trainer.base.errors import BadInput
from trainer.schedules.operations import Op
from trainer.schedules.recipes import pipedream_2bw
from trainer.tracing.clock import Clock, Span
from trainer.tracing.trace import leave


class PassRecorder:
    """Times the passes of this rank's stage, their waits and the updates, if `is_tracing`."""

    def __init__(self, stage: PipelineStage, *, is_tracing: bool) -> None:
        self._stage = stage
        self._clock = Clock(stage.device, is_tracing) if is_tracing else None
        self._running: AbstractContextManager[None] | None = None
        self._first = 0
        self._runs: list[tuple[int, int]] = []

    def span(self, kind: str, batch: int, microbatch: int = 0) -> AbstractContextManager[None]:
        """Times the body of the context as an F, a B, a U, or as the wait before one ("wait F")."""
        if self._clock is None:
            return nullcontext()
        op = Op("F", self._stage.stage_index, batch, microbatch, version=0, tied_version=0)
        return self._clock.span(op, kind)

    def begin(self, batch: int) -> None:
        """The batch is on its way: after a drain, a new run begins with it."""
        if self._clock is not None and self._running is None:
            self._first, self._running = batch, self._clock.between_drains()
            self._running.__enter__()

    def end(self, batch: int) -> None:
        """All before this batch is drained."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None
            self._runs.append((self._first, batch))

    def leave(
        self,
        folder: Path,
        num_updates: int,
        num_microbatches: int,
        synchronous_start: int,
        *,
        slack: bool,
    ) -> None:
        """Writes trace.json and timeline.svg on the rank of the first stage; all ranks call it.

        Raises BadInput if nothing was timed.
        """
        if self._clock is None:
            raise BadInput("trace", False, "must be True for a trace to be written")
        spans: list[list[Span]] = [[] for _ in range(self._stage.num_stages)]
        dist.all_gather_object(spans, self._clock.spans, group=self._stage.group)
        if self._stage.is_first:
            schedule = pipedream_2bw(
                num_updates,
                num_stages=len(spans),
                num_microbatches=num_microbatches,
                synchronous_start=min(synchronous_start, num_updates),
                synchronous_cooldown=0,
                slack=slack,
            )
            leave(folder, spans, schedule, self._runs)
