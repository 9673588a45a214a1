"""What both executors have in common: which operations are executed, and what for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from trainer.diagnostics import Found
from trainer.gradients import Diverged, Update
from trainer.microbatches import Microbatches
from trainer.operations import Op, Schedule
from trainer.purposes import CURVATURE, REHEARSAL, UPDATE, Loss, LossOfOutput, Part, Purpose
from trainer.stage import Stage

OnUpdate = Callable[[Update], None]
T = TypeVar("T")


class Executor(ABC):
    """The stages of this process, those of the model at `indices`, and the schedule they follow.

    `batch(t)` is an int64 tensor [batch_size, seq_len + 1]; `loss(output, targets)` averages over
    the tokens of a microbatch, so that equally long microbatches average to the batch. Replica r of
    R takes its r-th part of the batch.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        indices: Iterable[int],
        schedule: Schedule,
        batch: Callable[[int], Tensor],
        loss: Loss,
        num_replicas: int,
    ) -> None:
        self._stages, self._schedule = list(stages), schedule
        self._at = dict(zip(indices, stages, strict=True))
        self._last = schedule.num_stages - 1
        self._loss = loss
        self._microbatch = Microbatches(batch, schedule, num_replicas)
        self._num_parts = schedule.num_microbatches * num_replicas
        self._purpose = UPDATE
        self._do: Mapping[str, Callable[[Op], Update | None]] = {
            "F": self._forward,
            "B": self._backward,
            "I": self._backward_input,
            "W": self._backward_weights,
            "U": self._update,
        }

    @property
    def observe_every(self) -> int | None:
        """Updates between the observations that the optimizer asks for; None: it asks for none."""
        return self._stages[0].observe_every

    def run(self, first: int, last: int, on_update: OnUpdate) -> None:
        """Trains on batches first … last − 1 of one phase, then drains.

        Calls `on_update` when an update is applied. Raises Diverged before applying a bad one, on
        every rank, and PeerLost if another rank is gone.
        """
        self._pursue(UPDATE, self._schedule.operations(first, last), on_update)

    def rehearse(self, batch: int) -> None:
        """Notes what the update of `batch`, the next one, would be if its gradient were fresh.

        Nothing is noted if that gradient is not finite.
        """
        try:
            self._pursue(REHEARSAL, self._schedule.undelayed(batch))
        except Diverged:
            for stage in self._stages:
                stage.take_comparison()

    def observe(self, batch: int) -> None:
        """Shows the optimizers the curvature at the version that `batch`, the next one, reads."""
        self._pursue(CURVATURE, self._schedule.alone(batch))

    def agreed(self, mine: T) -> T:
        """What the process that records says, in all of them."""
        return mine

    def take_comparison(self) -> Found:
        """What the last update was beside its rehearsal, by weight, tied ones once."""
        return {name: of for stage in self._stages for name, of in stage.take_comparison().items()}

    def state(self) -> dict[str, dict[str, Any]]:
        """What each weight needs to go on, by its name; between runs only."""
        return {name: of for stage in self._stages for name, of in stage.state().items()}

    def restore(self, state: dict[str, dict[str, Any]]) -> None:
        """Takes back what `state` gave, of these stages or of the model cut otherwise."""
        for stage in self._stages:
            stage.restore(state)

    def weights(self) -> dict[str, Tensor]:
        """The newest weights by name, tied ones once, on the CPU."""
        return {name: of for stage in self._stages for name, of in stage.weights().items()}

    def _pursue(
        self,
        purpose: Purpose,
        operations: Sequence[Sequence[Op]],
        on_update: OnUpdate = lambda update: None,
    ) -> None:
        self._purpose = purpose
        self._execute(operations, on_update)

    def _loss_of(self, op: Op, replica: int) -> LossOfOutput:
        _, targets = self._microbatch(op, replica)
        part = Part(op.batch, op.microbatch, replica, self._num_parts)
        return self._purpose.loss(self._loss, targets, part)

    @abstractmethod
    def evaluate(self, batches: Iterable[Tensor]) -> float:
        """Mean loss of the newest weights, nats a token; `batches` are like those of training."""

    @abstractmethod
    def usage(self) -> dict[str, Any]:
        """Shares of the time without work, and waiting for updates; peak memory; of all ranks."""

    @abstractmethod
    def _execute(self, operations: Sequence[Sequence[Op]], on_update: OnUpdate) -> None: ...

    @abstractmethod
    def _forward(self, op: Op) -> None: ...

    @abstractmethod
    def _backward(self, op: Op) -> None: ...

    @abstractmethod
    def _backward_input(self, op: Op) -> None: ...

    @abstractmethod
    def _backward_weights(self, op: Op) -> None: ...

    @abstractmethod
    def _update(self, op: Op) -> Update | None: ...
