"""Executes a schedule in one process: the same operations on the same stages as the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from trainer.interleave import interleave
from trainer.schedules import Op, Schedule
from trainer.stage import Stage

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Update:
    """What update t was made of: mean loss of batch t (nats a token), norm before the clip, lr."""

    batch: int
    loss: float
    grad_norm: float
    lr: float


class Diverged(ArithmeticError):
    """The loss or the gradient of a batch is not finite; its update was not applied."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"the loss or the gradient of batch {batch} is not finite")
        self.batch = batch


class Emulated:
    """All stages in this process.

    `batch(t)` is an int64 tensor [batch_size, seq_len + 1]; `loss(output, targets)` averages over
    the tokens of a microbatch, so that equally long microbatches average to the batch. Gradients
    are clipped at the global norm `clip_norm` over all weights, tied ones counted once.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        batch: Callable[[int], Tensor],
        loss: Loss,
        clip_norm: float,
    ) -> None:
        self._stages, self._schedule = stages, schedule
        self._loss, self._clip_norm = loss, clip_norm
        self._batch = lru_cache(maxsize=schedule.num_stages + 1)(batch)
        self._do = {"F": self._forward, "B": self._backward, "U": self._update}
        self._sent: dict[tuple[str, int, int, int], Tensor] = {}
        self._losses: dict[int, list[Tensor]] = {}
        self._gradients: dict[int, dict[int, list[Tensor]]] = {}
        self._reduced: dict[int, tuple[float, float]] = {}

    def run(self, first: int, last: int, on_update: Callable[[Update], None]) -> None:
        """Trains on batches first … last − 1 of one phase, then drains.

        Calls `on_update` when an update is applied. Raises Diverged before applying a bad one.
        """
        operations = [
            self._schedule.operations(stage, first, last) for stage in range(len(self._stages))
        ]
        for stage, op in interleave(operations):
            done = self._do[op.kind](stage, op)
            if done is not None:
                on_update(done)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Mean loss of the newest weights, nats a token; `batches` are like those of training."""
        total, num_tokens = torch.zeros((), dtype=torch.float64), 0
        for batch in batches:
            inputs, targets = batch[:, :-1], batch[:, 1:]
            for stage in self._stages:
                inputs = stage.evaluate(inputs)
            total += self._loss(inputs, targets).double().cpu() * targets.numel()
            num_tokens += targets.numel()
        return float(total / num_tokens)

    def state(self) -> list[dict[str, Any]]:
        """A state a stage; call it between runs only."""
        return [stage.state() for stage in self._stages]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Takes back what `state` gave."""
        for stage, saved in zip(self._stages, state, strict=True):
            stage.restore(saved)

    def weights(self) -> dict[str, Tensor]:
        """The newest weights by name, tied ones once."""
        return {
            name: weight.detach()
            for stage in self._stages
            for name, weight in zip(stage.versions.names, stage.versions.master, strict=True)
        }

    def _microbatch(self, op: Op) -> tuple[Tensor, Tensor]:
        rows = self._batch(op.batch).chunk(self._schedule.num_microbatches)[op.microbatch]
        return rows[:, :-1], rows[:, 1:]

    def _forward(self, stage: int, op: Op) -> None:
        inputs, targets = self._microbatch(op)
        x = self._sent.pop(("F", stage, op.batch, op.microbatch), inputs)
        if stage < len(self._stages) - 1:
            output = self._stages[stage].forward(op, x)
            self._sent["F", stage + 1, op.batch, op.microbatch] = output
        else:
            loss = self._stages[stage].forward(op, x, lambda output: self._loss(output, targets))
            self._losses.setdefault(op.batch, []).append(loss)

    def _backward(self, stage: int, op: Op) -> None:
        gradient = self._sent.pop(("B", stage, op.batch, op.microbatch), None)
        gradient = self._stages[stage].backward(op, gradient)
        if gradient is not None and stage > 0:
            self._sent["B", stage - 1, op.batch, op.microbatch] = gradient
        if op.microbatch == self._schedule.num_microbatches - 1:
            of_batch = self._gradients.setdefault(op.batch, {})
            of_batch[stage] = self._stages[stage].take_gradients(op.microbatch + 1)
            if len(of_batch) == len(self._stages):
                self._reduced[op.batch] = self._reduce(op.batch)

    def _reduce(self, batch: int) -> tuple[float, float]:
        """Adds tied gradients and clips, in place; returns the batch's loss and gradient norm."""
        gradients = [self._gradients[batch][stage] for stage in range(len(self._stages))]
        once = _add_tied(self._stages, gradients)
        norm = get_total_norm(once)
        scale = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)  # as clip_grad_norm_ does
        for of_stage in gradients:
            torch._foreach_mul_(of_stage, scale)
        loss = torch.stack(self._losses.pop(batch)).mean()
        values = torch.stack([loss.double(), norm.double()]).tolist()  # the one wait a batch
        if not all(isfinite(value) for value in values):
            raise Diverged(batch)
        return values[0], values[1]

    def _update(self, stage: int, op: Op) -> Update | None:
        self._stages[stage].update(op.batch, self._gradients[op.batch].pop(stage))
        if self._gradients[op.batch]:
            return None
        del self._gradients[op.batch]
        loss, grad_norm = self._reduced.pop(op.batch)
        return Update(op.batch, loss, grad_norm, self._stages[0].lr)


def _add_tied(stages: Sequence[Stage], gradients: Sequence[list[Tensor]]) -> list[Tensor]:
    """Gives both copies of a tied weight the sum of their gradients.

    Returns all gradients in the model's order, tied ones once.
    """
    first = dict(zip(stages[0].versions.names, gradients[0], strict=True))
    once = [gradient for of_stage in gradients[:-1] for gradient in of_stage]
    last = zip(stages[-1].versions.names, stages[-1].is_tied, gradients[-1], strict=True)
    for name, is_tied, gradient in last:
        if is_tied:
            gradient.copy_(first[name].add_(gradient))
        else:
            once.append(gradient)
    return once
