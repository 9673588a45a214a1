"""The passes of a stage with their messages, in 1F1B's order without an end."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from torch.distributed.pipelining import PipelineStage

from trainer.base.errors import BadInput
from trainer.schedules.operations import Op, Schedule
from trainer.schedules.orders import by_turns
from trainer.torch_pipelining.messages import (
    BACKWARD,
    FORWARD,
    Neighbours,
    of_every_rank,
    wait_for,
)
from trainer.torch_pipelining.two_versions import Twins
from trainer.tracing.clock import Clock
from trainer.tracing.trace import leave

Call = Callable[[int, int], None]
"""What makes a pass of a batch and a microbatch."""


class Passes:
    """Makes passes, each on the weights of its batch: `lead` forwards are ahead of the backwards.

    Outside of `run` the stage has the user's module, with the newest weights.
    """

    def __init__(
        self, stage: PipelineStage, num_microbatches: int, lead: int, twins: Twins, trace: bool
    ) -> None:
        self._stage, self._num, self._lead, self._twins = stage, num_microbatches, lead, twins
        self.neighbours = Neighbours(stage)
        self._clock = Clock(stage.device, True) if trace else None
        self.are_known = False
        """Whether other ranks know of passes of the last `run`, or copies have begun with them."""
        self.posted: dict[tuple[str, int, int], list[Any]] = {}
        """Receives of passes to come: those that an exception left, outside of `run`."""
        self._in_flight: dict[int, Any] = {}  # activations, which torch's `step` would drop

    def run(self, first: int, taken: int, backward: Call, forward: Call | None = None) -> None:
        """Makes the passes of batch `taken` − 1 or, without a `forward`, those that are left then.
        The pipeline was drained before batch `first`.

        What a pass receives is posted up to two passes before (AHEAD). No buffer is in use by then:
        its backward came three passes before a forward, or earlier.
        """
        stage, m, end = self._stage, self._num, (taken - first) * self._num
        steps = range(end, end + self._lead) if forward is None else range(end - m, end)
        numbered = by_turns(self._lead, end, steps)
        passes = [(kind, first + number // m, number % m) for kind, _, number in numbered]
        name = "fwd_cache" if hasattr(stage, "fwd_cache") else "_forward_chunk_states"  # torch 2.15
        kept: dict[int, Any] = getattr(stage, name)
        kept.update(self._in_flight)
        self.are_known = not self._twins.are_leaves
        self._twins.forget_gradients()
        try:
            self._make(passes, {FORWARD: forward, BACKWARD: backward})
        except BaseException:
            kept.clear()
            raise
        finally:
            stage.submod = self._twins.release()
        self._in_flight = dict(kept)

    def _make(self, passes: Sequence[tuple[str, int, int]], calls: dict[str, Call | None]) -> None:
        stage, coming = self._stage, iter(passes)
        self._post(islice(coming, self.neighbours.ahead))
        for kind, batch, i in passes:
            self._post(islice(coming, 1))
            if works := self.posted[kind, batch, i]:
                self.timed(f"wait {kind}", batch, i, wait_for, works)
                works.clear()
            stage.submod = self._twins.module(batch)
            self.timed(kind, batch, i, calls[kind], batch, i)
            del self.posted[kind, batch, i]
            self.are_known = self.are_known or stage.num_stages > 1

    def _post(self, passes: Iterable[tuple[str, int, int]]) -> None:
        for kind, batch, i in passes:
            if (kind, batch, i) not in self.posted:
                self.posted[kind, batch, i] = self.neighbours.receive(kind, i)

    def timed(self, kind: str, batch: int, i: int, call: Any, *given: Any) -> Any:
        """Makes a call, which is an F, a B, a U, or a wait before one ("wait F") in the trace."""
        if self._clock is None:
            return call(*given)
        op = Op("F", self._stage.stage_index, batch, i, version=0, tied_version=0)
        with self._clock.span(op, kind):
            return call(*given)

    def between_drains(self) -> AbstractContextManager[None]:
        """A context around what makes the last passes before a drain."""
        return self._clock.between_drains() if self._clock else nullcontext()

    def write_trace(self, folder: Path, trial: Schedule, runs: list[tuple[int, int]]) -> None:
        """Writes what each rank did when, beside the simulation of a trial with these `runs` from
        drain to drain. Raises BadInput if nothing was timed."""
        if self._clock is None:
            raise BadInput("trace", False, "must be True for a trace to be written")
        spans = of_every_rank(self._clock.spans, self._stage.group)
        if self._stage.is_first:
            leave(folder, spans, trial, runs)
