"""Executes a schedule in one process: the same operations on the same stages as the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from trainer.diagnostics import Found
from trainer.gradients import Clip, Diverged, Update, slots
from trainer.interleave import interleave
from trainer.microbatches import Microbatches
from trainer.operations import Op, Schedule, completes
from trainer.stage import Stage, rehearsal

Loss = Callable[[Tensor, Tensor], Tensor]


class Emulated:
    """All stages, and all data-parallel replicas of them, in this process.

    `batch(t)` is an int64 tensor [batch_size, seq_len + 1]; `loss(output, targets)` averages over
    the tokens of a microbatch, so that equally long microbatches average to the batch. Replica r of
    R takes its r-th part of the batch; gradients are summed over a replica's microbatches first,
    over replicas then.
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
        self._stages, self._schedule = stages, schedule
        self._loss, self._clip, self._num_replicas = loss, clip, num_replicas
        self._microbatch = Microbatches(batch, schedule, num_replicas)
        self._slots = slots([stage.versions.names for stage in stages])
        self._do = {
            "F": self._forward,
            "B": self._backward,
            "I": self._backward_input,
            "W": self._backward_weights,
            "U": self._update,
        }
        self._sent: dict[tuple[str, int, int, int, int], Tensor] = {}
        self._losses: dict[tuple[int, int], list[Tensor]] = {}
        self._gradients: dict[int, dict[int, list[Tensor]]] = {}
        self._reduced: dict[int, tuple[float, float]] = {}

    def run(self, first: int, last: int, on_update: Callable[[Update], None]) -> None:
        """Trains on batches first … last − 1 of one phase, then drains.

        Calls `on_update` when an update is applied. Raises Diverged before applying a bad one.
        """
        self._execute(self._schedule.operations(first, last), on_update)

    def rehearse(self, batch: int) -> None:
        """Notes what the update of `batch`, the next one, would be if its gradient were fresh."""
        with rehearsal(self._stages):
            self._execute(self._schedule.undelayed(batch), lambda update: None)

    def take_comparison(self) -> Found:
        """What the last update was beside its rehearsal, by weight; tied ones once."""
        return {k: v for stage in self._stages for k, v in stage.take_comparison().items()}

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

    def state(self) -> dict[str, dict[str, Any]]:
        """What each weight needs to go on, by its name; call it between runs only."""
        return {name: of for stage in self._stages for name, of in stage.state().items()}

    def restore(self, state: dict[str, dict[str, Any]]) -> None:
        """Takes back what `state` gave, of these stages or of the model cut otherwise."""
        for stage in self._stages:
            stage.restore(state)

    def weights(self) -> dict[str, Tensor]:
        """The newest weights by name, tied ones once."""
        return {
            name: weight.detach()
            for stage in self._stages
            for name, weight in zip(stage.versions.names, stage.versions.master, strict=True)
        }

    def usage(self) -> dict[str, Any]:
        """What only ranks that work side by side can tell."""
        keys = ("bubble", "bubble_by_rank", "update_wait_by_rank", "peak_memory_bytes_by_rank")
        return dict.fromkeys(keys)

    def _execute(
        self, operations: Sequence[Sequence[Op]], on_update: Callable[[Update], None]
    ) -> None:
        for _, op in interleave(operations):
            done = self._do[op.kind](op)
            if done is not None:
                on_update(done)

    def _forward(self, op: Op) -> None:
        for replica in range(self._num_replicas):
            inputs, targets = self._microbatch(op, replica)
            x = self._sent.pop(("F", op.stage, op.batch, op.microbatch, replica), inputs)
            stage = self._stages[op.stage]
            if op.stage < len(self._stages) - 1:
                output = stage.forward(op, x, None, replica)
                self._sent["F", op.stage + 1, op.batch, op.microbatch, replica] = output
            else:
                loss = stage.forward(op, x, self._loss_against(targets), replica)
                self._losses.setdefault((op.batch, replica), []).append(loss)

    def _backward(self, op: Op) -> None:
        self._backward_input(op)
        self._backward_weights(op)

    def _backward_input(self, op: Op) -> None:
        for replica in range(self._num_replicas):
            gradient = self._sent.pop(("B", op.stage, op.batch, op.microbatch, replica), None)
            gradient = self._stages[op.stage].backward_input(op, gradient, replica)
            if gradient is not None and op.stage > 0:
                self._sent["B", op.stage - 1, op.batch, op.microbatch, replica] = gradient

    def _backward_weights(self, op: Op) -> None:
        stage = self._stages[op.stage]
        for replica in range(self._num_replicas):
            stage.backward_weights(op, replica)
        if completes(op, self._schedule.num_microbatches):
            self._gradients.setdefault(op.batch, {})[op.stage] = stage.take_gradients()

    def _loss_against(self, targets: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda output: self._loss(output, targets)

    def _update(self, op: Op) -> Update | None:
        if op.batch not in self._reduced:
            self._reduced[op.batch] = self._reduce(op.batch)
        self._stages[op.stage].update(op.batch, self._gradients[op.batch].pop(op.stage))
        if self._gradients[op.batch]:
            return None
        del self._gradients[op.batch]
        loss, grad_norm = self._reduced.pop(op.batch)
        return Update(op.batch, loss, grad_norm, self._stages[0].lr)

    def _reduce(self, batch: int) -> tuple[float, float]:
        """Averages, adds tied gradients, corrects and clips, in place; returns loss and norm."""
        num_microbatches = self._schedule.num_microbatches * self._num_replicas
        gradients = [self._gradients[batch][stage] for stage in range(len(self._stages))]
        for of_stage in gradients:
            torch._foreach_div_(of_stage, num_microbatches)
        _add_tied(self._stages, gradients)
        for stage, of_stage in zip(self._stages, gradients, strict=True):
            stage.correct(batch, of_stage)
        norms = zip(self._slots, gradients, strict=True)
        norm = torch.linalg.vector_norm(sum(slots.norms(of) for slots, of in norms))
        for of_stage in gradients:
            self._clip(of_stage, norm)
        replicas = range(self._num_replicas)
        losses = [torch.stack(self._losses.pop((batch, replica))).mean() for replica in replicas]
        loss = sum(losses[1:], losses[0]) / self._num_replicas
        values = torch.stack([loss.double(), norm.double()]).tolist()  # the one wait a batch
        if not all(isfinite(value) for value in values):
            raise Diverged(batch)
        return values[0], values[1]


def _add_tied(stages: Sequence[Stage], gradients: Sequence[list[Tensor]]) -> None:
    """Gives both copies of a tied weight the sum of their gradients."""
    first = dict(zip(stages[0].versions.names, gradients[0], strict=True))
    last = zip(stages[-1].versions.names, stages[-1].is_tied, gradients[-1], strict=True)
    for name, is_tied, gradient in last:
        if is_tied:
            gradient.copy_(first[name].add_(gradient))
