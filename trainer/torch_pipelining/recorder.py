"""What every rank of a pipeline did when, kept for the trace and the timeline that a trial has."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from torch.distributed.pipelining import PipelineStage

from trainer.base.errors import BadInput
from trainer.schedules.operations import Op, Schedule
from trainer.torch_pipelining.messages import of_every_rank
from trainer.tracing.clock import Clock
from trainer.tracing.trace import leave

UNTIMED = nullcontext()


class PassRecorder:
    """Times the passes of this rank's stage, their waits and the updates, if `is_tracing`."""

    def __init__(self, stage: PipelineStage, *, is_tracing: bool) -> None:
        self._stage = stage
        self._clock = Clock(stage.device, is_tracing) if is_tracing else None

    def span(self, kind: str, batch: int, microbatch: int = 0) -> AbstractContextManager[None]:
        """Times the body of the context as an F, a B, a U, or as the wait before one ("wait F")."""
        if self._clock is None:
            return UNTIMED
        op = Op("F", self._stage.stage_index, batch, microbatch, version=0, tied_version=0)
        return self._clock.span(op, kind)

    def drain(self) -> AbstractContextManager[None]:
        """Keeps, after the body of the context, all that was timed since the drain before."""
        return UNTIMED if self._clock is None else self._clock.between_drains()

    def leave(self, folder: Path, schedule: Schedule, runs: Sequence[tuple[int, int]]) -> None:
        """Writes trace.json and timeline.svg on the rank of the first stage; all ranks call it.

        Raises BadInput if nothing was timed.
        """
        if self._clock is None:
            raise BadInput("trace", False, "must be True for a trace to be written")
        spans = of_every_rank(self._clock.spans, self._stage.group)
        if self._stage.is_first:
            leave(folder, spans, schedule, runs)
