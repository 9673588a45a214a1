"""The last few tensors of every weight, which corrections compare the newest ones with."""

from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor

from pipegap.trainer.corrections.none import State


class Past:
    """Keeps the last `kept[i]` tensors that were recorded for weight i.

    An age of 1 is the tensor that was recorded last. `name` is what the tensors are called in a
    checkpoint, where the age follows it: "update_1", "update_2", …
    """

    def __init__(self, name: str, kept: Sequence[int]) -> None:
        self._name, self._kept = name, kept
        # Lists of all weights' tensors, the newest first.
        self._past: deque[Sequence[Tensor | None]] = deque(maxlen=max(kept, default=0))
        self._num = [0] * len(kept)
        """How many tensors of each weight there are."""

    def has(self, weight: int, age: int) -> bool:
        """Whether the tensor of that age of weight number `weight` has been recorded."""
        return age <= self._num[weight]

    def get(self, weight: int, age: int) -> Tensor:
        """The tensor of that age of weight number `weight`."""
        tensor = self._past[age - 1][weight]
        assert tensor is not None
        return tensor

    def take(self, ages: Mapping[int, int]) -> Sequence[Tensor]:
        """The tensor of each weight that has an age, which the caller may overwrite.

        It is a copy if the tensor stays kept.
        """
        tensors = {i: self.get(i, age) for i, age in ages.items()}
        return [t if ages[i] == self._kept[i] else t.clone() for i, t in tensors.items()]

    def record(self, tensors: Sequence[Tensor]) -> None:
        """Adds one tensor per weight, and drops tensors that have become too old."""
        self._past.appendleft(tensors)
        self._num = [
            min(num + 1, num_kept) for num, num_kept in zip(self._num, self._kept, strict=True)
        ]
        if len(set(self._kept)) > 1:
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
            sum(name in saved for name in names[:num_kept])
            for saved, num_kept in zip(state, self._kept, strict=True)
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
