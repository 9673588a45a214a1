"""The last few tensors of every weight, which corrections compare the newest ones with."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from trainer.corrections.none import State

T = TypeVar("T")


def chosen(items: Sequence[T], numbers: Iterable[int]) -> Sequence[T]:
    """The items with these numbers, which ascend; the list itself, if they are all of them."""
    few = list(numbers)
    return items if len(few) == len(items) else [items[i] for i in few]


class Past:
    """Keeps the last `kept[i]` tensors that were recorded for weight i.

    An age of 1 is the tensor that was recorded last. `name` is what the tensors are called in a
    checkpoint, where the age follows it: "update_1", "update_2", …
    """

    def __init__(self, name: str, kept: Sequence[int]) -> None:
        self._name, self._kept = name, kept
        # Whole lists, the newest first: their tensors may be parts of few vectors.
        self._past: deque[Sequence[Tensor | None]] = deque(maxlen=max(kept, default=0))

    def has(self, weight: int, age: int) -> bool:
        """Whether the tensor of that age of weight number `weight` has been recorded."""
        return len(self._past) >= age and self._past[age - 1][weight] is not None

    def get(self, weight: int, age: int) -> Tensor:
        """The tensor of that age of weight number `weight`."""
        tensor = self._past[age - 1][weight]
        assert tensor is not None
        return tensor

    def take(self, ages: Mapping[int, int]) -> Sequence[Tensor]:
        """The tensor of each weight that has an age, which the caller may overwrite.

        It is a copy if the tensor stays kept.
        """
        if len(ages) == len(self._kept) and len({*ages.values(), *self._kept}) == 1:
            whole: Sequence[Tensor] = self._past[-1]  # type: ignore[assignment]
            return whole
        tensors = {i: self.get(i, age) for i, age in ages.items()}
        return [t if ages[i] == self._kept[i] else t.clone() for i, t in tensors.items()]

    def record(self, tensors: Sequence[Tensor]) -> None:
        """Adds one tensor per weight, and drops tensors that have become too old."""
        self._past.appendleft(tensors)
        if len(set(self._kept)) > 1:
            for age in range(1, len(self._past) + 1):
                of_age = self._past[age - 1]
                pairs = zip(of_age, self._kept, strict=True)
                self._past[age - 1] = [t if kept >= age else None for t, kept in pairs]

    def state(self) -> list[State]:
        """For each weight, its kept tensors by name and age."""
        return [
            {
                f"{self._name}_{age}": tensor
                for age, of_age in enumerate(self._past, 1)
                if (tensor := of_age[i]) is not None
            }
            for i in range(len(self._kept))
        ]

    def restore(self, state: Sequence[State]) -> None:
        """Takes back its tensors from a state that may hold others too."""
        self._past.clear()
        for age in range(1, (self._past.maxlen or 0) + 1):
            name = f"{self._name}_{age}"
            # Copies: what is restored is the caller's, and `take` lets its reader overwrite it.
            self._past.append(
                [
                    saved[name].clone() if name in saved and kept >= age else None
                    for saved, kept in zip(state, self._kept, strict=True)
                ]
            )
