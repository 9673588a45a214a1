"""Versions of weights that lie in blocks, as graphs read and write them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.compiled.blocks import Blocks
from trainer.stages.versions import Versions


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
            self.master[i].data = ring[0].data

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
        pairs = []
        for ring in self._stacks:
            old, new = (ring[v % len(ring)] for v in (self.newest, self.newest + 1))
            pairs.append((old, new))
        for master, leaves in zip(self.master, self._rings, strict=True):
            if len(leaves) > 1:
                master.data = leaves[(self.newest + 1) % len(leaves)].data
        self.close(())
        return pairs
