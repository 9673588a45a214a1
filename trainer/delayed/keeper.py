"""What makes gradients late in a loop that has one batch in flight: older weights, or waiting."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.delayed.copies import copy_into, reshard_all
from pipegap.trainer.delayed.settings import Options, Settings


class Gradient(NamedTuple):
    """The gradient of a batch, one tensor per weight or None.

    `delay` is its counted delay: the batch's number minus the version that it was taken at.
    """

    batch: int
    tensors: Sequence[Tensor | None]
    delay: int


class Waiting(NamedTuple):
    """The delays of the batches whose updates, or whose forward, come next, and the options that
    came with each gradient that waits; the oldest first."""

    delays: list[int]
    options: list[Options]


Update = Callable[[Gradient], Sequence[Tensor]]
"""Turns the newest weights from W(t) into W(t + 1); see `stages.update.corrected_update`."""


class Keeper(ABC):
    """Keeps what a delay needs beside the loop's own `weights`, which the optimizer steps.

    `version(t)` is the version that batch t reads.
    """

    def __init__(self, version: Callable[[int], int]) -> None:
        self.weights: list[nn.Parameter] = []
        self._version = version
        self._hidden: list[Tensor] = []
        """What the next batch reads, while the loop's weights show others."""

    @abstractmethod
    def add(self, weights: Sequence[nn.Parameter]) -> None:
        """Takes more weights, whose versions have all been what they are now."""

    @abstractmethod
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        """Takes the gradient of `batch`, the next one, and makes the updates that are due.

        Afterwards the loop has the weights that the next batch reads.
        """

    @abstractmethod
    def at_newest(self) -> AbstractContextManager[None]:
        """The loop's weights have the newest content while it lasts; nobody may run the model."""

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

    def __init__(self, version: Callable[[int], int], lag: int, settings: Settings) -> None:
        super().__init__(version)
        self._lag, self._settings = lag, settings
        self._waiting: deque[tuple[Gradient, Options]] = deque()
        self._made = 0

    @override
    def add(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights += weights
        none = [None] * len(weights)
        pairs = [(g._replace(tensors=[*g.tensors, *none]), written) for g, written in self._waiting]
        self._waiting = deque(pairs)
        if self._hidden:
            self._hidden += [weight.detach().clone() for weight in weights]

    @override
    def take(self, batch: int, gradient: Sequence[Tensor | None], update: Update) -> None:
        delay, following = batch - self._made, self._version(batch + 1)
        if following <= batch:  # it waits, and the loop's next backward may write to its tensors
            gradient = [None if tensor is None else tensor.detach().clone() for tensor in gradient]
        self._waiting.append((Gradient(batch, gradient, delay), self._settings.written()))
        self._make(following, update)

    def _make(self, version: int, update: Update) -> None:
        """Makes the updates up to `version`."""
        while self._made < version:
            gradient, written = self._waiting.popleft()
            with self._settings.seen_with(written):
                update(gradient)
            self._made += 1

    @override
    def at_newest(self) -> AbstractContextManager[None]:
        return nullcontext()

    @override
    def finish(self, update: Update) -> None:
        self._make(self._made + len(self._waiting), update)

    @override
    def state(self) -> list[dict[str, Tensor]]:
        unused = [
            [weight.detach().clone() for weight in self.weights]
            for _ in range(self._lag - len(self._waiting))
        ]  # see KeptWeights
        tensors_of = [*(gradient.tensors for gradient, _ in self._waiting), *unused]
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
        written = [written for _, written in self._waiting]
        if written:
            written[0] = self._settings.unseen(written[0])
        return Waiting([gradient.delay for gradient, _ in self._waiting], written)

    @override
    def restore(
        self, num_taken: int, state: Sequence[Mapping[str, Tensor]], waiting: Waiting
    ) -> None:
        self._made = num_taken - len(waiting.delays)
        self._waiting.clear()
        self._settings.begin(waiting.options)
        for i, (delay, written) in enumerate(zip(*waiting, strict=True)):
            tensors = [None if (g := s.get(f"waiting_{i}")) is None else g.clone() for s in state]
            self._waiting.append((Gradient(self._made + i, tensors, delay), written))
        if all("read" in saved for saved in state):
            self._write([saved["read"] for saved in state])
