"""What makes gradients late in a loop that has one batch in flight: older weights, or waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

Options = list[dict[str, Any]]
"""What a scheduler may set, such as the learning rate, of each parameter group."""


class Gradient(NamedTuple):
    """The gradient of a batch, one tensor per weight or None, and the options it came with.

    `delay` is its counted delay: the batch's number minus the version that it was taken at.
    """

    batch: int
    tensors: Sequence[Tensor | None]
    options: Options
    delay: int


class Waiting(NamedTuple):
    """The delays of the batches whose updates, or whose forward, come next, and the options that
    came with each gradient that waits; the oldest first."""

    delays: list[int]
    options: list[Options]


Update = Callable[[Gradient], Sequence[Tensor]]
"""Turns the newest weights from W(t) into W(t + 1); see `stages.update.corrected_update`."""


class Keeper(ABC):
    """Keeps what a delay needs beside the loop's own `weights`.

    `version(t)` is the version that batch t reads. The optimizer steps `newest`.
    """

    def __init__(self, weights: Sequence[nn.Parameter], version: Callable[[int], int]) -> None:
        self.weights, self._version = list(weights), version
        self.newest = self.weights

    @abstractmethod
    def take(
        self, batch: int, gradient: Sequence[Tensor | None], options: Options, update: Update
    ) -> None:
        """Takes the gradient of `batch`, the next one, and makes the updates that are due.

        Afterwards the loop's weights are those that the next batch reads.
        """

    @abstractmethod
    def show(self, weights: Sequence[Tensor]) -> None:
        """Puts `weights`, those to evaluate, into the loop's own until `hide`."""

    @abstractmethod
    def hide(self) -> None:
        """Puts back the weights that the next batch reads."""

    @abstractmethod
    def finish(self, update: Update) -> None:
        """Makes the updates that still wait, and puts the newest weights into the loop's own."""

    @abstractmethod
    def state(self) -> list[dict[str, Tensor]]:
        """What must be saved, by name, of each weight."""

    @property
    @abstractmethod
    def waiting(self) -> Waiting:
        """What must be saved beside `state`."""

    @abstractmethod
    def restore(
        self, num_taken: int, state: Sequence[Mapping[str, Tensor]], waiting: Waiting
    ) -> None:
        """Restores `state` and `waiting` as they were after `num_taken` batches."""
