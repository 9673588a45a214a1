"""A random order of n things in O(1) memory: a keyed Feistel network on their numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.base.randomness import stream_seed

Indices = npt.NDArray[np.uint64]
NUM_ROUNDS = 6
MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)  # odd, bits well spread


class Permutation:
    """A bijection of 0 … size − 1, a different one for every (seed, epoch).

    A Feistel network permutes the numbers of 2k bits, for the smallest k whose numbers include
    0 … size − 1. A number that lands outside goes through the network again (cycle walking; Black
    and Rogaway 2002), on average less than four times.
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._shift = np.uint64(half_bits)
        self._mask = np.uint64((1 << half_bits) - 1)
        self._keys = [
            np.uint64(stream_seed(seed, "data", str(epoch), str(i))) for i in range(NUM_ROUNDS)
        ]

    def __call__(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The images of `positions`, each in 0 … size − 1; an array of the same shape."""
        images = self._network(np.asarray(positions, dtype=np.uint64))
        while (outside := images >= self.size).any():
            images[outside] = self._network(images[outside])
        return images.astype(np.int64)

    def _network(self, values: Indices) -> Indices:
        left, right = values >> self._shift, values & self._mask
        for key in self._keys:
            left, right = right, left ^ self._scramble(right, key)
        return (left << self._shift) | right

    def _scramble(self, half: Indices, key: np.uint64) -> Indices:
        with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
            mixed = (half + key) * MIX[0]
            mixed = (mixed ^ (mixed >> np.uint64(29))) * MIX[1]
        return (mixed ^ (mixed >> np.uint64(32))) & self._mask
