"""What makes gradients late in a loop that has one batch in flight: older weights, or waiting."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from typing_extensions import override

from trainer.delayed.copies import copy_into, reshard_all

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
        self._hidden: list[Tensor] = []
        """What the next batch reads, while the loop's weights show others."""

    @abstractmethod
    def take(
        self, batch: int, gradient: Sequence[Tensor | None], options: Options, update: Update
    ) -> None:
        """Takes the gradient of `batch`, the next one, and makes the updates that are due.

        Afterwards the loop has the weights that the next batch reads.
        """

    def show(self, weights: Sequence[Tensor]) -> None:
        """Puts the `weights` to evaluate into the loop's own until `hide`."""
        if any(shown is not own for shown, own in zip(weights, self.weights, strict=True)):
            self._hidden = [weight.detach().clone() for weight in self.weights]
            self._write(weights)

    def hide(self) -> None:
        """Puts back the weights that the next batch reads."""
        if self._hidden:
            self._write(self._hidden)
            self._hidden = []

    def _write(self, tensors: Sequence[Tensor]) -> None:
        """The loop's weights get this content, between two batches."""
        copy_into(self.weights, tensors)
        reshard_all()

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


class KeptGradients(Keeper):
    """Gradients wait until the loop's next batch must read a version that they make.

    The updates equal those of `KeptWeights`, to the bit, since update t uses the options that came
    with the gradient of batch t. But they are made up to τ steps later, so that the loop's weights
    are those of τ steps before, and the last τ gradients wait for `finish`. A delay of τ takes τ
    sets of gradients, and a delay of 0 nothing.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], version: Callable[[int], int], lag: int
    ) -> None:
        super().__init__(weights, version)
        self._lag = lag
        self._waiting: deque[Gradient] = deque()
        self._made = 0

    @override
    def take(
        self, batch: int, gradient: Sequence[Tensor | None], options: Options, update: Update
    ) -> None:
        delay, following = batch - self._made, self._version(batch + 1)
        if following <= batch:  # it waits, and the loop's next backward may write to its tensors
            gradient = [None if tensor is None else tensor.detach().clone() for tensor in gradient]
        self._waiting.append(Gradient(batch, gradient, options, delay))
        self._make(following, update)

    def _make(self, version: int, update: Update) -> None:
        """Makes the updates up to `version`; the loop's own gradients stay as they are."""
        own = [weight.grad for weight in self.weights]
        while self._made < version:
            update(self._waiting.popleft())
            self._made += 1
        for weight, gradient in zip(self.weights, own, strict=True):
            weight.grad = gradient

    @override
    def finish(self, update: Update) -> None:
        self._make(self._made + len(self._waiting), update)

    @override
    def state(self) -> list[dict[str, Tensor]]:
        unused = [
            [weight.detach().clone() for weight in self.weights]
            for _ in range(self._lag - len(self._waiting))
        ]  # see KeptWeights
        tensors_of = [*(gradient.tensors for gradient in self._waiting), *unused]
        sets = {f"waiting_{i}": tensors for i, tensors in enumerate(tensors_of)}
        if self._hidden:  # else the loop's own weights are a checkpoint's
            sets["read"] = self._hidden
        return [
            {name: t.detach() for name, tensors in sets.items() if (t := tensors[i]) is not None}
            for i in range(len(self.weights))
        ]

    @property
    @override
    def waiting(self) -> Waiting:
        waiting = list(self._waiting)
        delays = [gradient.delay for gradient in waiting]
        return Waiting(delays, [gradient.options for gradient in waiting])

    @override
    def restore(
        self, num_taken: int, state: Sequence[Mapping[str, Tensor]], waiting: Waiting
    ) -> None:
        self._made = num_taken - len(waiting.delays)
        self._waiting.clear()
        for i, (delay, options) in enumerate(zip(*waiting, strict=True)):
            tensors = [None if (g := s.get(f"waiting_{i}")) is None else g.clone() for s in state]
            self._waiting.append(Gradient(self._made + i, tensors, options, delay))
        if all("read" in saved for saved in state):
            self._write([saved["read"] for saved in state])
