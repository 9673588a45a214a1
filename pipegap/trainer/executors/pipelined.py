"""Executes a schedule as one rank of a true pipeline: the emulation's stages, lists and numbers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.resources import peak_memory_bytes
from pipegap.trainer.executors.channel import Channels
from pipegap.trainer.executors.executor import Executor, Loss, OnUpdate, T
from pipegap.trainer.executors.gradients import Clip, Diverged, Update
from pipegap.trainer.executors.reduction import Reducer
from pipegap.trainer.ranks.groups import Gang, collect, whole_state
from pipegap.trainer.schedules.operations import Op, Schedule, completes, horizon
from pipegap.trainer.stages.probe import Comparison
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.tracing.trace import Clock


class Pipelined(Executor):
    """This rank's stages of the pipeline; every rank of the gang makes the same calls.

    The arguments are as in `Emulated`, but `stages` are of this rank alone. `message` is
    the shape of a microbatch's hidden states, [rows, length, width], which stages send each other.
    The state of the whole model lies in the folder `spill`.
    """

    state_is_a_copy: ClassVar[bool] = True

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        batch: Callable[[int], Tensor],
        loss: Loss,
        clip: Clip,
        gang: Gang,
        clock: Clock,
        message: torch.Size,
        spill: Path,
    ) -> None:
        indices = schedule.stages(gang.place)
        super().__init__(stages, indices, schedule, batch, loss, gang.num_replicas)
        self._gang, self._clock, self._spill = gang, clock, spill
        self._reducer = Reducer(
            gang, self._at, schedule.num_stages, schedule.num_microbatches, clip, clock
        )
        self._channels = Channels(gang, schedule, message, stages[0].dtype)
        self._losses: dict[int, list[Tensor]] = {}
        self._incomplete: dict[int, int] = {}
        self._runs: list[tuple[int, int]] = []

    @override
    def run(self, first: int, last: int, on_update: OnUpdate) -> None:
        super().run(first, last, on_update)
        self._runs.append((first, last))

    @override
    def agreed(self, value: T) -> T:
        first: T = self._gang.all_gather(value)[0]
        return first

    @override
    def take_comparison(self) -> Comparison:
        """The comparison of the whole model, on the recording rank; empty on other ranks."""
        return self._gathered(dict(super().take_comparison()))

    @override
    @torch.no_grad()
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Mean loss of the newest weights, in nats per token, on every rank."""
        total, num_tokens = torch.zeros((), dtype=torch.float64, device=self._gang.device), 0
        for batch in batches:
            self._gang.heartbeat.beat()
            inputs, targets = batch[:, :-1], batch[:, 1:]
            for index, stage in self._at.items():
                if index > 0:
                    inputs = self._channels.take_hidden(index, targets.shape, stage.eval_dtype)
                output = stage.evaluate(inputs)
                if index < self._last:
                    self._channels.send_on(index, output)
                else:
                    total += self._loss(output, targets).double() * targets.numel()
            num_tokens += targets.numel()
        self._channels.flush()
        # Only the rank of the last stage has a loss: the others add 0.
        self._gang.wait(self._gang.all_reduce(total, self._gang.pipeline))
        return float(total) / num_tokens  # not on a GPU, which multiplies by the reciprocal

    @override
    def state(self) -> dict[str, dict[str, Any]]:
        """The state of the whole model, on the recording rank and a disk; empty on other ranks."""
        states = super().state() if self._gang.replica == 0 else {}
        return whole_state(self._gang, states, self._spill)

    @override
    def weights(self) -> dict[str, Tensor]:
        """The weights of the whole model, on the recording rank; empty on other ranks."""
        return self._gathered(super().weights())

    @override
    def usage(self) -> dict[str, Any]:
        """The shares of time without work and of waits for updates, and peak memory, by rank."""
        peak = peak_memory_bytes(self._gang.device)
        numbers = self._clock.bubble, self._clock.share("wait U"), peak
        bubbles, waits, peaks = zip(*self._gang.all_gather(numbers), strict=True)
        return {
            "bubble": sum(bubbles) / len(bubbles),
            "bubble_by_rank": bubbles,
            "update_wait_by_rank": waits,
            "peak_memory_bytes": max(peaks),
            "peak_memory_bytes_by_rank": peaks,
        }

    def write_trace(self, folder: Path) -> None:
        """Writes trace.json and timeline.svg, on the recording rank."""
        spans = [*collect(self._gang, [self._clock.spans])]
        if self._gang.records:
            from pipegap.trainer.tracing.timeline import leave  # altair is slow to load

            leave(folder, spans, self._schedule, self._runs)

    def _gathered(self, items: dict[str, Any]) -> dict[str, Any]:
        is_first_replica = self._gang.replica == 0
        return dict(collect(self._gang, items.items() if is_first_replica else ()))

    @override
    def _execute(self, lists: Sequence[Sequence[Op]], on_update: OnUpdate) -> None:
        operations = lists[self._gang.place]
        with self._clock.between_drains():
            self._reducer.clear()
            # Receives are posted in the order of the schedule, ahead of the operations that read.
            self._channels.expect(operations)
            for position, op in enumerate(operations):
                self._gang.heartbeat.beat()
                try:
                    done = self._do[op.kind](op)
                except Diverged:
                    # Nobody stops alone: other ranks still wait for messages. They get empty ones,
                    # so that they too reach the reduced gradient and see that it is not finite.
                    last, later_ops = horizon(lists, op.batch), operations[position + 1 :]
                    self._channels.exchange_empty([op for op in later_ops if op.batch <= last])
                    raise
                if done is not None:
                    on_update(done)
            self._channels.flush()
            for update in self._reducer.unreported():
                on_update(update)

    @override
    def _forward(self, op: Op) -> None:
        stage, x = self._at[op.stage], self._take(op)
        x = self._microbatch(op, self._gang.replica)[0] if x is None else x
        with self._clock.span(op):
            if op.stage < self._last:
                self._channels.send(op, stage.forward(op, x))
            else:
                loss = stage.forward(op, x, self._loss_of(op, self._gang.replica))
                self._losses.setdefault(op.batch, []).append(loss)

    @override
    def _backward(self, op: Op) -> None:
        gradient = self._take(op)
        with self._clock.span(op):
            # The input's gradient leaves first: the stage before waits for it, nobody for weights.
            self._pass_back(op, gradient)
            self._at[op.stage].backward_weights(op)
        self._note(op)

    @override
    def _backward_input(self, op: Op) -> None:
        gradient = self._take(op)
        with self._clock.span(op):
            self._pass_back(op, gradient)

    @override
    def _backward_weights(self, op: Op) -> None:
        with self._clock.span(op):
            self._at[op.stage].backward_weights(op)
        self._note(op)

    def _pass_back(self, op: Op, gradient: Tensor | None) -> None:
        """Runs the backward to the input and sends its gradient, which the stage before awaits."""
        gradient = self._at[op.stage].backward_input(op, gradient)
        if gradient is not None:
            self._channels.send(op, gradient)

    def _take(self, op: Op) -> Tensor | None:
        with self._clock.span(op, f"wait {op.kind}"):
            return self._channels.take(op)

    @override
    def _update(self, op: Op) -> Update | None:
        """Applies the next update. Returns the one that can be reported then, if there is one."""
        with self._clock.span(op, f"wait {op.kind}"):
            self._gang.heartbeat.beat(waiting=True)
            gradients = self._reducer.next().gradients
            self._gang.heartbeat.beat()
        with self._clock.span(op):
            self._finish(self._at[op.stage], op.batch, gradients.pop(0))
        return None if gradients else self._reducer.applied(self._stages[0].lr)

    def _note(self, op: Op) -> None:
        """Has a batch reduced once its gradient is complete on all stages here."""
        if completes(op, self._schedule.num_microbatches):
            num_incomplete = self._incomplete.pop(op.batch, len(self._stages)) - 1
            if num_incomplete:
                self._incomplete[op.batch] = num_incomplete
            else:
                self._reducer.add(op, self._losses.pop(op.batch, []), not self._probes)
