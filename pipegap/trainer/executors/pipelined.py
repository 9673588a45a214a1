"""Executes a schedule as one rank of a true pipeline: the emulation's stages, lists and numbers.

A thread sums the gradient of a batch over the ranks and clips it, while the rank computes on.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil, isfinite
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.base.resources import peak_memory_bytes
from pipegap.trainer.executors.channel import Channels, on_stream, own_stream
from pipegap.trainer.executors.executor import (
    Clip,
    Diverged,
    Executor,
    Loss,
    OnUpdate,
    Slots,
    T,
    Update,
    slots,
)
from pipegap.trainer.ranks.groups import Gang, collect, whole_state
from pipegap.trainer.schedules.operations import Op, Schedule, completes, horizon
from pipegap.trainer.stages.probe import Comparison
from pipegap.trainer.stages.stage import Stage
from pipegap.trainer.tracing.trace import Clock

# A batch's gradient is summed and clipped.


class Totals:
    """What a batch's update is recorded with, by one sum over the ranks of a pipeline.

    `vector` has this rank's norms, by slot, and its share of the loss. The sum is on its way when
    the object is made. It adds zeros and so rounds nothing: one rank has each slot's norm.
    """

    def __init__(self, gang: Gang, batch: int, vector: Tensor) -> None:
        self.batch, self._gang, self._vector = batch, gang, vector
        self._work = gang.all_reduce(vector, gang.pipeline)

    @cached_property
    def norm(self) -> Tensor:
        """Norm of the whole model's gradient before the clip. Waits for the sum."""
        with self._gang.raising_peer_lost():
            self._work.wait()
        return torch.linalg.vector_norm(self._vector[:-1])

    @cached_property
    def loss_and_norm(self) -> tuple[float, float]:
        """The batch's mean loss and the norm. Raises Diverged unless both are finite."""
        loss, norm = torch.stack((self._vector[-1], self.norm)).double().tolist()
        if not (isfinite(loss) and isfinite(norm)):
            raise Diverged(self.batch)
        return loss, norm


@dataclass(frozen=True)
class Reduced:
    """The clipped gradients of each stage of the rank, and the totals of the batch."""

    gradients: list[Sequence[Tensor]]
    totals: Totals


class Reducer:
    """Sums over the ranks what makes one gradient: replicas, tied weights, norm.

    Each sum needs the result of the one before it, so they run in a thread of their own. The rank
    waits only when it needs the result, and the sums go on while it waits for a message. With a
    clip by stage no update needs the batch's totals: a rank goes on without them, and reports an
    update so many updates later that every rank must have added to its totals by then.
    """

    def __init__(
        self,
        gang: Gang,
        stages: dict[int, Stage],
        num_stages: int,
        num_microbatches: int,
        clip: Clip,
        clock: Clock,
    ) -> None:
        self._gang, self._stages = gang, list(stages.values())
        self._slots = _agree_on_slots(gang, stages, num_stages)
        self._divisor, self._clip = num_microbatches * gang.num_replicas, clip
        self._clock = clock
        self._stream = own_stream(gang.device)
        # With one thread of torch, as the sums share the cores with the computation. Each thread of
        # Python sets that number for itself.
        self._thread = ThreadPoolExecutor(1, "reducer", torch.set_num_threads, (1,))
        self._complete: deque[tuple[Op, Sequence[Tensor], bool]] = deque()
        self._pending: Future[Reduced] | None = None
        self._unreported: deque[tuple[Totals, float]] = deque()
        batches_in_flight = ceil(gang.num_ranks / num_microbatches)
        self._most_unreported = batches_in_flight if clip.by_stage else 0

    def clear(self) -> None:
        """Forgets what a run that diverged left."""
        self._complete.clear()
        self._pending = None
        self._unreported.clear()

    def add(self, op: Op, losses: Sequence[Tensor], is_corrected: bool) -> None:
        """Reduces the gradients of the batch that `op` completed, after those of earlier ones.

        `losses` has the loss of each microbatch, on the last stage; elsewhere it is empty. Unless
        the batch `is_corrected`, no correction changes its gradients.
        """
        self._complete.append((op, losses, is_corrected))
        self._launch()

    def next(self) -> Reduced:
        """Waits for what the next update needs. Raises Diverged."""
        assert self._pending is not None
        return self._pending.result()

    def applied(self, lr: float) -> Update | None:
        """Notes that every stage here applied the update that was next, with that learning rate.

        Returns the update that can be reported now, if there is one. Raises Diverged.
        """
        self._unreported.append((self.next().totals, lr))
        update = self._report() if len(self._unreported) > self._most_unreported else None
        self._pending = None
        self._launch()
        return update

    def unreported(self) -> Iterator[Update]:
        """The updates that were applied and not reported. Raises Diverged."""
        while self._unreported:
            yield self._report()

    def _report(self) -> Update:
        totals, lr = self._unreported.popleft()
        self._gang.heartbeat.beat(waiting=True)  # the totals wait for every rank of the pipeline
        loss, norm = totals.loss_and_norm
        self._gang.heartbeat.beat()
        return Update(totals.batch, loss, norm, lr)

    def _launch(self) -> None:
        """Starts to reduce the next complete batch, unless one is pending.

        Only one is at a time: a correction of the next gradient may need the weights that the
        pending update makes.
        """
        if self._pending is not None or not self._complete:
            return
        op, losses, is_corrected = self._complete.popleft()
        gradients = [stage.take_gradients() for stage in self._stages]
        # Ranks without the last stage add 0 to the loss.
        loss = torch.stack(list(losses)).mean() if losses else gradients[0][0].new_zeros(())
        if self._stream is not None:
            # The sums must not start before the backward has written the gradients.
            self._stream.wait_stream(torch.cuda.current_stream())
        self._pending = self._thread.submit(self._reduce, op, gradients, loss, is_corrected)

    def _reduce(
        self, op: Op, gradients: list[Sequence[Tensor]], loss: Tensor, is_corrected: bool
    ) -> Reduced:
        with on_stream(self._stream), self._clock.span(op, "reduce"):
            gang = self._gang
            # The loss travels with the gradients: one message fewer per batch.
            loss = loss.to(gradients[0][0].dtype)
            if gang.num_replicas > 1:
                self._sum([*chain.from_iterable(gradients), loss], gang.replicas)
            if self._divisor > 1:  # else the sum is the mean
                for of_stage in gradients:
                    torch._foreach_div_(list(of_stage), self._divisor)
            # Before the correction and the norm, which must see one gradient per tied weight.
            self._sum_tied(gradients)
            if is_corrected:
                for stage, of_stage in zip(self._stages, gradients, strict=True):
                    stage.correct(op.batch, of_stage)
            norms = [s.norms(of_stage) for s, of_stage in zip(self._slots, gradients, strict=True)]
            # [slots + 1], the loss last. The norm of the slots is the same number for any cut into
            # stages. Each replica's pipeline sums the loss that all replicas have added up already.
            vector = torch.cat((sum(norms[1:], norms[0]), loss.reshape(1) / gang.num_replicas))
            is_finite = self._is_finite(vector, gradients) if self._clip.by_stage else None
            # Launched now, and waited for by a clip that needs the model's norm.
            totals = Totals(gang, op.batch, vector)
            for stage, of_stage in zip(self._stages, gradients, strict=True):
                self._clip.stage(stage, of_stage, lambda: totals.norm)
            # The one wait for the device, in this thread: the rank computes on meanwhile.
            if is_finite is None:
                _ = totals.loss_and_norm  # or Diverged
            elif not is_finite.item():
                # The totals tell every rank, some batches later. Until then this rank goes on, with
                # updates by zero gradients instead of by what is not finite.
                for of_stage in gradients:
                    torch._foreach_zero_(list(of_stage))
                if self._stream is not None:
                    self._stream.synchronize()
        return Reduced(gradients, totals)

    def _is_finite(self, vector: Tensor, gradients: list[Sequence[Tensor]]) -> Tensor:
        """Whether every gradient that is stepped here is finite.

        The second copy of a tied weight has no norm in the `vector`, so tied weights are tested
        themselves.
        """
        tensors = [vector]
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            pairs = zip(stage.is_tied, of_stage, strict=True)
            tensors += [gradient for is_tied, gradient in pairs if is_tied]
        return torch.stack([tensor.isfinite().all() for tensor in tensors]).all()

    def _sum_tied(self, gradients: list[Sequence[Tensor]]) -> None:
        """Gives both copies of each tied weight the sum of their gradients."""
        copies: dict[str, list[Tensor]] = {}
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            columns = zip(stage.versions.names, stage.is_tied, of_stage, strict=True)
            for name, is_tied, gradient in columns:
                if is_tied:
                    copies.setdefault(name, []).append(gradient)
        apart = [same[0] for same in copies.values() if len(same) == 1]
        if apart:
            self._sum(apart, self._gang.tied)
        # Where this rank has both copies, the sum needs no message.
        for first, last in (same for same in copies.values() if len(same) == 2):
            last.copy_(first.add_(last))

    def _sum(self, tensors: Sequence[Tensor], group: Any) -> None:
        """Sums each tensor over the ranks of `group`, in place, in one message."""
        # Copied into one: a message per tensor would cost its latency for each of them.
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._gang.raising_peer_lost():
            self._gang.all_reduce(flat, group).wait()
        parts = flat.split([tensor.numel() for tensor in tensors])
        torch._foreach_copy_(
            list(tensors), [part.view_as(t) for part, t in zip(parts, tensors, strict=True)]
        )


def _agree_on_slots(gang: Gang, stages: dict[int, Stage], num_stages: int) -> list[Slots]:
    """The slots of this rank's stages, which follow from the names of all ranks' weights."""
    slots_here = {index: stage.slots for index, stage in stages.items()}
    names = {index: names for rank in gang.all_gather(slots_here) for index, names in rank.items()}
    every = slots([names[index] for index in range(num_stages)])
    return [every[index] for index in stages]


# A rank executes its list of operations.


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
        return self._gang.all_gather(value)[0]  # of rank 0, which records

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
        # The replicas' weights are equal, so one replica's are sent.
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
                    update = self._do[op.kind](op)
                except Diverged:
                    # Nobody stops alone: other ranks still wait for messages. They get empty ones,
                    # so that they too reach the reduced gradient and see that it is not finite.
                    last, later_ops = horizon(lists, op.batch), operations[position + 1 :]
                    self._channels.exchange_empty([op for op in later_ops if op.batch <= last])
                    raise
                if update is not None:
                    on_update(update)
            self._channels.flush()
            for late_update in self._reducer.unreported():
                on_update(late_update)

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
            # The stages of a rank are updated in their order, that of the gradients.
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
