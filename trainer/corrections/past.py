"""The last few tensors of every weight, which corrections compare the newest ones with."""

from collections import deque
from collections.abc import Sequence

from torch import Tensor

from trainer.corrections.none import State


class Past:
    """Keeps the last `kept[i]` tensors that were recorded for weight i.

    An age of 1 is the tensor that was recorded last. `name` is what the tensors are called in a
    checkpoint, where the age follows it: "update_1", "update_2", …
    """

    def __init__(self, name: str, kept: Sequence[int]) -> None:
        self._name = name
        self._past: list[deque[Tensor]] = [deque(maxlen=num) for num in kept]

    def has(self, weight: int, age: int) -> bool:
        """Whether the tensor of that age of weight number `weight` has been recorded."""
        return len(self._past[weight]) >= age

    def get(self, weight: int, age: int) -> Tensor:
        """The tensor of that age of weight number `weight`."""
        return self._past[weight][-age]

    def take(self, weight: int, age: int) -> Tensor:
        """The tensor of that age, which the caller may overwrite: a copy if it stays kept."""
        tensor = self.get(weight, age)
        return tensor if age == self._past[weight].maxlen else tensor.clone()

    def record(self, tensors: Sequence[Tensor]) -> None:
        """Adds one tensor per weight, and drops tensors that have become too old."""
        for past, tensor in zip(self._past, tensors, strict=True):
            past.append(tensor)

    def state(self) -> list[State]:
        """For each weight, its kept tensors by name and age."""
        return [
            {f"{self._name}_{age}": past[-age] for age in range(1, len(past) + 1)}
            for past in self._past
        ]

    def restore(self, state: Sequence[State]) -> None:
        """Takes back its tensors from a state that may hold others too."""
        for past, saved in zip(self._past, state, strict=True):
            ages = range(past.maxlen or 0, 0, -1)
            past.clear()
            names = [f"{self._name}_{age}" for age in ages]
            # Copies: what is restored is the caller's, and `take` lets its reader overwrite it.
            past.extend(saved[name].clone() for name in names if name in saved)
