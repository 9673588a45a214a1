"""Tensors that lie one after another in memory: arithmetic on all of them is a few calls."""

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part", bound=Tensor)
ALIGNED = 64
"""A part begins at a multiple of so many entries: libraries choose their kernels by alignment."""


class Layout:
    """Where tensors of `shapes` lie in few vectors: those with one key in one vector, in order."""

    def __init__(self, shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> None:
        distinct = dict.fromkeys(keys)
        self.members = [[i for i, of in enumerate(keys) if of == key] for key in distinct]
        """For each vector the numbers of the tensors in it."""
        self._shapes = shapes
        sizes = [[prod(shapes[i]) for i in numbers] for numbers in self.members]
        # Each part, then the entries up to the next one, which belong to none.
        self._cuts = [[n for size in of for n in (size, -size % ALIGNED)] for of in sizes]
        self.sizes = [sum(cuts) for cuts in self._cuts]

    def parts(self, wholes: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in these vectors, one per shape: views."""
        parts: dict[int, Tensor] = {}
        for numbers, cuts, whole in zip(self.members, self._cuts, wholes, strict=True):
            for i, part in zip(numbers, whole.split_with_sizes(cuts)[::2], strict=True):
                parts[i] = part.view(self._shapes[i])
        return [parts[i] for i in range(len(self._shapes))]

    def flat(self, wholes: Iterable[Tensor]) -> "Flat[Tensor]":
        """The tensors in these vectors, and the vectors."""
        vectors = list(wholes)
        return Flat(self, vectors, self.parts(vectors))

    def zeros(self, device: torch.device, dtypes: Sequence[torch.dtype]) -> "Flat[Tensor]":
        """Tensors of zeros with these dtypes, one per tensor."""
        return self.flat(
            torch.zeros(size, device=device, dtype=dtypes[numbers[0]])
            for numbers, size in zip(self.members, self.sizes, strict=True)
        )


class Flat(list[Part]):
    """Tensors that are parts of few vectors, `wholes`."""

    def __init__(self, layout: Layout, wholes: list[Tensor], parts: Iterable[Part]) -> None:
        super().__init__(parts)
        self.layout, self.wholes = layout, wholes

    def clone(self) -> "Flat[Tensor]":
        """A copy of all of them."""
        return self.layout.flat(whole.clone() for whole in self.wholes)


def wholes(*lists: Sequence[Tensor]) -> list[list[Tensor]]:
    """Each list in as few tensors as hold its entries, of equal sizes in all lists.

    Arithmetic entry by entry gives the same numbers on them, to the last bit.
    """
    flats = [tensors for tensors in lists if isinstance(tensors, Flat)]
    if len(flats) == len(lists) and len({id(flat.layout) for flat in flats}) == 1:
        return [flat.wholes for flat in flats]
    return [list(tensors) for tensors in lists]


def cloned(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """A copy of each tensor, in few vectors where the tensors are."""
    return tensors.clone() if isinstance(tensors, Flat) else [t.detach().clone() for t in tensors]
