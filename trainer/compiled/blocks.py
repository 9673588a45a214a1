"""Weights of one shape that lie side by side in memory, so that a graph reads them as one stack."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


class Blocks:
    """Which tensors are stacked: those of one shape and one key, in one block [members, *shape].

    `keys` has a key for each tensor. What graphs compute with has one tensor per block; what the
    rest of a trial sees has one per weight, in the model's order, and the two share memory.
    """

    def __init__(self, shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> None:
        pairs = list(zip(shapes, keys, strict=True))
        self.members = [
            [i for i, pair in enumerate(pairs) if pair == chosen] for chosen in dict.fromkeys(pairs)
        ]
        """For each block, the numbers of the tensors in it."""
        self.shapes = [torch.Size([len(of), *shapes[of[0]]]) for of in self.members]
        """The shape of each block."""
        self._num_tensors = len(pairs)

    def zeros(self) -> list[Tensor]:
        """New blocks of zeros in fp32."""
        return [torch.zeros(shape) for shape in self.shapes]

    def tensors(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """The parts of these blocks, one per tensor: views."""
        parts: dict[int, Tensor] = {}
        for numbers, block in zip(self.members, blocks, strict=True):
            parts.update(zip(numbers, block.unbind(), strict=True))
        return [parts[i] for i in range(self._num_tensors)]

    def stacked(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """New blocks with these values, one per tensor."""
        return [torch.stack([tensors[i] for i in numbers]) for numbers in self.members]


class StackedParts(list[Tensor]):
    """One tensor per weight, the parts of `blocks`."""

    def __init__(self, layout: Blocks, blocks: list[Tensor]) -> None:
        super().__init__(layout.tensors(blocks))
        self.blocks = blocks
