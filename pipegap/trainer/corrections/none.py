"""Does nothing about delay: the interface that every correction implements; and the past that some
keep.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

State = Mapping[str, Tensor]
"""What a correction remembers of one weight, by name."""
Tensors = Sequence[Tensor]
"""One per weight."""


class NoCorrection:
    """The plain delayed update, W(t+1) = W(t) − u_t.

    Made for one stage: `num_updates` is T, and `lags[i]` says how many versions behind the newest
    weight i is read while the delay is on. For every batch t the stage calls `gradient`, then
    `apply`, `ahead` and `look_ahead`, each with one tensor per weight. `delays[i]` is the counted
    delay of weight i, in updates. Only `look_ahead` may change a weight whose delay is 0.
    """

    needs_update: ClassVar[bool] = False
    """Whether `apply` or `ahead` reads the update u_t, for which the stage has to copy W(t)."""

    reads_ahead: ClassVar[bool] = False
    """Whether late reads of a version see what `ahead` returned for it."""

    looks_ahead: ClassVar[bool] = False
    """Whether `look_ahead` does anything, and so the correction acts without a delay too."""

    @property
    def moves_weights(self) -> bool:
        """Whether `apply` does anything."""
        return type(self).apply is not NoCorrection.apply

    def __init__(self, num_updates: int, lags: Sequence[int]) -> None:
        self.num_updates, self.lags = num_updates, lags

    def gradient(
        self,
        gradients: Tensors,  # fp32, each of its weight's shape
        weights: Tensors,  # W(t), fp32
        delays: Sequence[int],
    ) -> None:
        """Changes in place the raw gradients of batch t, averaged and not yet clipped."""

    def look_back(self, delays: Sequence[int]) -> None:
        """Called before `gradient` on a GPU: what it sends to the host has arrived at `apply`."""

    def lr_factor(self, update: int, delay: int) -> float:
        """Factor on the learning rate of weights whose gradient is `delay` updates old."""
        return 1.0

    def apply(
        self,
        weights: Tensors,  # W(t) − u_t, fp32
        update: Tensors,  # u_t, each of its weight's shape
        delays: Sequence[int],
    ) -> None:
        """Turns `weights` from W(t) − u_t into W(t+1), in place.

        `update` is u_t, the whole change that the optimizer made, learning rate and decay included.
        It may be kept but must not be changed before the next update. It may be empty if
        `needs_update` is false.
        """

    def ahead(
        self,
        weights: Tensors,  # W(t+1), which must not be changed
        update: Tensors,  # u_t, as in `apply`
    ) -> Tensors:
        """The tensors that late reads of version t + 1 see, if the correction `reads_ahead`."""
        return weights

    def look_ahead(
        self,
        weights: Tensors,  # W(t+1)
        update: int,
        rate: float,
    ) -> None:
        """Turns W(t+1) into the weights that are read and stepped from next, in place.

        `update` is the number t of the update, whose learning rate was `rate` times its peak.
        """

    def evaluated(self, weights: Tensors) -> Tensors:
        """W(t+1) itself: the tensors to evaluate and export in place of `weights`."""
        return weights

    def graph_factor(self) -> Callable[[int], float] | None:
        """If `apply` is Error Feedback with a lag of 1: the function from a weight's delay to λ,
        with which `compile=update` makes it in a graph. None for any other `apply`.

        The function counts only for the class that defines this method: a derived class, whose
        `apply` may differ, must define the method again.
        """
        return None

    def num_buffers(self, lag: int) -> int:
        """How many fp32 tensors of a weight's size `state` holds at most, for a weight of `lag`."""
        return 0

    def num_leaves_ahead(self, lag: int) -> int:
        """How many leaves for late reads a weight of `lag` has in addition to its versions."""
        return lag + 1 if self.reads_ahead and lag else 0

    def state(self) -> list[State]:
        """What a checkpoint must hold: for each weight, tensors by name."""
        return [{} for _ in self.lags]

    def restore(self, state: Sequence[State]) -> None:
        """Takes back what `state` returned."""


class Past:
    """Keeps the last `depths[i]` tensors that were recorded for weight i.

    An age of 1 is the tensor that was recorded last. `name` is what the tensors are called in a
    checkpoint, where the age follows it: "update_1", "update_2", …
    """

    def __init__(self, name: str, depths: Sequence[int]) -> None:
        self._name, self._depths = name, depths
        # Lists of all weights' tensors, the newest first.
        self._past: deque[Sequence[Tensor | None]] = deque(maxlen=max(depths, default=0))
        self._num = [0] * len(depths)
        """How many tensors of each weight there are."""

    def has(self, weight: int, age: int) -> bool:
        """Whether the tensor of that age of weight number `weight` has been recorded."""
        return age <= self._num[weight]

    def get(self, weight: int, age: int) -> Tensor:
        """The tensor of that age of weight number `weight`."""
        tensor = self._past[age - 1][weight]
        assert tensor is not None
        return tensor

    def take(self, ages: Mapping[int, int]) -> Tensors:
        """The tensor of each weight that has an age, which the caller may overwrite.

        It is a copy if the tensor stays kept.
        """
        tensors = {i: self.get(i, age) for i, age in ages.items()}
        return [t if ages[i] == self._depths[i] else t.clone() for i, t in tensors.items()]

    def record(self, tensors: Tensors) -> None:
        """Adds one tensor per weight, and drops tensors that have become too old."""
        self._past.appendleft(tensors)
        self._num = [
            min(num + 1, depth) for num, depth in zip(self._num, self._depths, strict=True)
        ]
        # The deque drops what is older than the largest depth; here the other weights' go.
        if len(set(self._depths)) > 1:
            for age, of_age in enumerate(self._past, 1):
                pairs = zip(of_age, self._num, strict=True)
                self._past[age - 1] = [t if age <= num else None for t, num in pairs]

    def state(self) -> list[State]:
        """For each weight, its kept tensors by name and age."""
        return [
            {f"{self._name}_{age}": self.get(i, age) for age in range(1, num + 1)}
            for i, num in enumerate(self._num)
        ]

    def restore(self, state: Sequence[State]) -> None:
        """Takes back its tensors from a state that may hold others too."""
        ages = range(1, (self._past.maxlen or 0) + 1)
        names = [f"{self._name}_{age}" for age in ages]
        self._num = [
            sum(name in saved for name in names[:depth])
            for saved, depth in zip(state, self._depths, strict=True)
        ]
        self._past.clear()
        # Copies: what is restored is the caller's, and `take` lets its reader overwrite it.
        self._past.extend(
            [
                saved[name].clone() if age <= num else None
                for saved, num in zip(state, self._num, strict=True)
            ]
            for age, name in zip(ages, names, strict=True)
        )
