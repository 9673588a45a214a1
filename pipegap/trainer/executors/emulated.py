"""Executes a schedule in one process: the same operations on the same stages as the pipeline."""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.executors.executor import (
    Clip,
    Diverged,
    Executor,
    Loss,
    OnUpdate,
    Update,
    against,
    slots,
)
from pipegap.trainer.schedules.operations import Op, Schedule, completes
from pipegap.trainer.schedules.proof import interleave
from pipegap.trainer.stages.stage import Stage


def mean_loss(
    stages: Sequence[Callable[[Tensor], Any]], loss: Loss, batches: Iterable[Tensor]
) -> float:
    """Mean loss per token over `batches`, int64 [rows, length + 1], of a model cut into stages."""
    total, num_tokens = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        for stage in stages:
            inputs = stage(inputs)
        # By tokens: the last batch may have fewer rows. In fp64: a split has thousands of batches.
        total += loss(inputs, targets).double().cpu() * targets.numel()
        num_tokens += targets.numel()
    return float(total / num_tokens)


class Emulated(Executor):
    """All stages, and all data-parallel replicas of them, in this process.

    Gradients are summed first over the microbatches of a replica, then over replicas.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        batch: Callable[[int], Tensor],
        loss: Loss,
        clip: Clip,
        num_replicas: int = 1,
    ) -> None:
        super().__init__(stages, range(len(stages)), schedule, batch, loss, num_replicas)
        self._clip, self._num_replicas = clip, num_replicas
        self._slots = slots([stage.slots for stage in stages])
        self._sent: dict[tuple[str, int, int, int, int], Tensor] = {}
        self._losses: dict[tuple[int, int], list[Tensor]] = {}
        self._gradients: dict[int, dict[int, Sequence[Tensor]]] = {}
        self._reduced: dict[int, tuple[float, float]] = {}

    @override
    @torch.no_grad()
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        return mean_loss([stage.evaluate for stage in self._stages], self._loss, batches)

    @override
    def usage(self) -> dict[str, Any]:
        """Returns None for each number: only ranks that run side by side can be idle."""
        keys = ("bubble", "bubble_by_rank", "update_wait_by_rank", "peak_memory_bytes_by_rank")
        return dict.fromkeys(keys)

    @override
    def _execute(self, operations: Sequence[Sequence[Op]], on_update: OnUpdate) -> None:
        for _, op in interleave(operations):
            update = self._do[op.kind](op)
            if update is not None:
                on_update(update)

    @override
    def _forward(self, op: Op) -> None:
        for replica in range(self._num_replicas):
            inputs, targets = self._microbatch(op, replica)
            # Nobody sends to stage 0, which reads the tokens.
            x = self._sent.pop(("F", op.stage, op.batch, op.microbatch, replica), inputs)
            stage = self._stages[op.stage]
            if op.stage < self._last:
                output = stage.forward(op, x, None, replica)
                self._sent["F", op.stage + 1, op.batch, op.microbatch, replica] = output
            else:
                loss = stage.forward(op, x, against(targets, self._loss), replica)
                self._losses.setdefault((op.batch, replica), []).append(loss)

    @override
    def _backward(self, op: Op) -> None:
        self._backward_input(op)
        self._backward_weights(op)

    @override
    def _backward_input(self, op: Op) -> None:
        for replica in range(self._num_replicas):
            gradient = self._sent.pop(("B", op.stage, op.batch, op.microbatch, replica), None)
            gradient = self._stages[op.stage].backward_input(op, gradient, replica)
            # Stage 0 sends to nobody.
            if gradient is not None and op.stage > 0:
                self._sent["B", op.stage - 1, op.batch, op.microbatch, replica] = gradient

    @override
    def _backward_weights(self, op: Op) -> None:
        stage = self._stages[op.stage]
        for replica in range(self._num_replicas):
            stage.backward_weights(op, replica)
        if completes(op, self._schedule.num_microbatches):
            self._gradients.setdefault(op.batch, {})[op.stage] = stage.take_gradients()

    @override
    def _update(self, op: Op) -> Update | None:
        # At the first U every stage has its gradients: an update awaits them (`proof.Awaits`).
        if op.batch not in self._reduced:
            self._reduced[op.batch] = self._reduce(op.batch)
        gradients = self._gradients[op.batch].pop(op.stage)
        self._finish(self._stages[op.stage], op.batch, gradients)
        if self._gradients[op.batch]:  # other stages have not applied theirs
            return None
        del self._gradients[op.batch]
        loss, grad_norm = self._reduced.pop(op.batch)
        return Update(op.batch, loss, grad_norm, self._stages[0].lr)

    def _reduce(self, batch: int) -> tuple[float, float]:
        """Turns the stages' sums into one clipped gradient, in place; returns loss and norm."""
        gradients = [self._gradients[batch][stage] for stage in range(len(self._stages))]
        if self._num_parts > 1:  # else the sum is the mean
            for of_stage in gradients:
                torch._foreach_div_(list(of_stage), self._num_parts)
        if len(gradients) > 1:  # one stage holds a tied weight once
            _add_tied(self._stages, gradients)
        if not self._probes:
            for stage, of_stage in zip(self._stages, gradients, strict=True):
                stage.correct(batch, of_stage)
        pairs = zip(self._slots, gradients, strict=True)
        norms = [slots.norms(of_stage) for slots, of_stage in pairs]
        norm = torch.linalg.vector_norm(sum(norms[1:], norms[0]))
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            self._clip.stage(stage, of_stage, lambda: norm)
        replicas = range(self._num_replicas)
        # A mean per replica, then their mean: the order, and so the rounding, of a true pipeline.
        of_replicas = [self._losses.pop((batch, replica)) for replica in replicas]
        if self._num_parts > 1:
            losses = [torch.stack(of_replica).mean() for of_replica in of_replicas]
            loss = sum(losses[1:], losses[0]) / self._num_replicas
        else:
            [[loss]] = of_replicas
        # One copy to the host for both: the only wait for the device in a batch.
        values = torch.stack([loss, norm]).tolist()
        if not all(isfinite(value) for value in values):
            raise Diverged(batch)
        return values[0], values[1]


def _add_tied(stages: Sequence[Stage], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Gives both copies of a tied weight the sum of their gradients."""
    first = dict(zip(stages[0].versions.names, gradients[0], strict=True))
    last = zip(stages[-1].versions.names, stages[-1].is_tied, gradients[-1], strict=True)
    for name, is_tied, gradient in last:
        if is_tied:
            gradient.copy_(first[name].add_(gradient))  # in place: both copies have the sum now
