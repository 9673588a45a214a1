"""Weights of one shape that lie side by side in memory, so that a graph reads them as one stack;
and the versions of such weights."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from pipegap.trainer.stages.versions import Versions


class Blocks:
    """Which tensors are stacked: those of one shape and one key, in one block [members, *shape].

    `keys` has a key for each tensor. What graphs compute with has one tensor per block; what the
    rest of a trial sees has one per weight, in the model's order, and the two share memory.
    """

    def __init__(self, shapes: Sequence[torch.Size], keys: Sequence[Hashable]) -> None:
        pairs = list(zip(shapes, keys, strict=True))
        self.members = [
            [i for i, pair in enumerate(pairs) if pair == block_key]
            for block_key in dict.fromkeys(pairs)
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


class StackedVersions(Versions):
    """The versions of a stage's weights, in fp32; those of one block lie side by side.

    The weights of a block have one lag.
    """

    def __init__(self, module: nn.Module, lags: Sequence[int], layout: Blocks) -> None:
        super().__init__(module, lags, torch.float32)
        self._firsts = [numbers[0] for numbers in layout.members]
        by_slot = [
            layout.stacked([ring[slot % len(ring)].detach() for ring in self._rings])
            for slot in range(max(lags) + 1)
        ]
        self._stacks = [
            [blocks[b] for blocks in by_slot[: lags[first] + 1]]
            for b, first in enumerate(self._firsts)
        ]
        self.num_slots = [len(ring) for ring in self._stacks]
        """How many versions each block has."""
        parts = [layout.tensors(blocks) for blocks in by_slot]
        for i, ring in enumerate(self._rings):
            for slot, leaf in enumerate(ring):
                leaf.data = parts[slot][i]
        self._lay_masters(0)

    def read(self, versions: Sequence[int]) -> list[Tensor]:
        """The blocks with version `versions[i]` of weight i.

        Raises LookupError for a version that does not exist yet or is already overwritten.
        """
        blocks = []
        for first, ring in zip(self._firsts, self._stacks, strict=True):
            slot, version = versions[first] % len(ring), versions[first]
            if self._held[first][slot] != version:
                at = f"{self.names[first]}: version {version}"
                raise LookupError(f"{at} is not there, only {sorted(self._held[first])}")
            blocks.append(ring[slot])
        return blocks

    def step(self) -> list[tuple[Tensor, Tensor]]:
        """The blocks of the newest version, and those for the next one, which becomes the newest.

        The two are one block where a weight has one version. The next version's values are the
        caller's to write.
        """
        pairs = [self._of_next(ring) for ring in self._stacks]
        self._lay_masters(self.newest + 1)
        self.close(())
        return pairs

    @override
    @torch.no_grad()
    def open(self) -> Sequence[nn.Parameter]:
        for old, new in (self._of_next(ring) for ring in self._stacks):
            if new is not old:
                new.copy_(old)
        self._lay_masters(self.newest + 1)
        return self.master

    @override
    def close(self, predicted: Sequence[Tensor]) -> None:
        self.newest += 1
        for slot_versions in self._held:
            slot_versions[self.newest % len(slot_versions)] = self.newest

    @override
    @torch.no_grad()
    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._restore_slots(state)
        self._lay_masters(self.newest)
        # Slots of a stage without a compiler may have been rounded to another dtype.
        torch._foreach_copy_(list(self.master), [saved["master"] for saved in state])

    def _of_next(self, ring: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """A block of the newest version, and where its next one will lie."""
        return ring[self.newest % len(ring)], ring[(self.newest + 1) % len(ring)]

    def _lay_masters(self, version: int) -> None:
        """Lays the master where this version lies."""
        for master, ring in zip(self.master, self._rings, strict=True):
            if master.data_ptr() != ring[version % len(ring)].data_ptr():
                master.data = ring[version % len(ring)].data
