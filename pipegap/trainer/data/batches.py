"""Batches as a pure function of (seed, index): no state to save, nothing to skip on a resume.

The order of an epoch is a keyed Feistel network on the numbers of its windows, so it takes O(1)
memory. On a GPU, a thread reads the next batch while the device computes.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.resources import stream_seed
from pipegap.trainer.data.shards import Tokens

PLANNED = 64
"""Batches whose windows are drawn at once. Drawing each batch by itself would take a twentieth of a
small update."""
Indices = npt.NDArray[np.uint64]
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
        rounds = map(str, range(6))
        self._keys = [np.uint64(stream_seed(seed, "data", str(epoch), i)) for i in rounds]

    def __call__(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns the images of `positions`, each in 0 … size − 1, in an array of their shape."""
        images = self._network(np.asarray(positions, dtype=np.uint64))
        # It ends: the network's cycle through a position in range comes back into the range.
        while (outside := images >= self.size).any():
            images[outside] = self._network(images[outside])
        return images.astype(np.int64)

    def _network(self, values: Indices) -> Indices:
        left_half, right_half = values >> self._shift, values & self._mask
        for key in self._keys:  # each round can be undone, whatever `_scramble` returns
            left_half, right_half = right_half, left_half ^ self._scramble(right_half, key)
        return (left_half << self._shift) | right_half

    def _scramble(self, half: Indices, key: np.uint64) -> Indices:
        with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
            mixed = (half + key) * MIX[0]
            mixed = (mixed ^ (mixed >> np.uint64(29))) * MIX[1]
        return (mixed ^ (mixed >> np.uint64(32))) & self._mask


class Windows:
    """All whole windows of seq_len + 1 tokens, stride seq_len, in order.

    Each of their tokens but the first is predicted once. Raises BadInput if no window is whole.
    """

    def __init__(self, tokens: Tokens, seq_len: int) -> None:
        self._tokens, self._seq_len = tokens, seq_len
        if not len(self):
            allowed = f"must be below the {len(tokens)} tokens of a split of the data"
            raise BadInput("seq_len", seq_len, allowed)

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._seq_len)

    def batches(self, size: int, num_tokens: int | None = None) -> Iterator[Tensor]:
        """Yields the windows in order, `size` at a time; the last batch may be smaller.

        With `num_tokens` only the windows that predict so many tokens, at least one window, evenly
        spread over the split.
        """
        num_windows = len(self)
        if num_tokens is not None:
            num_windows = min(num_windows, max(1, num_tokens // self._seq_len))
        indices = np.arange(num_windows) * len(self) // num_windows
        for first in range(0, num_windows, size):
            yield self.take(indices[first : first + size])

    def take(self, indices: np.typing.NDArray[np.int64]) -> Tensor:
        """Returns the windows with these numbers: int64, [windows, seq_len + 1]."""
        rows = [self._tokens.read(int(i) * self._seq_len, self._seq_len + 1) for i in indices]
        return torch.from_numpy(np.stack(rows))


class Batches:
    """Batch t: the t-th `batch_size` windows, each epoch in its own random order.

    Window i of the run is a function of (seed, i) alone, whatever ran before it.
    """

    def __init__(self, tokens: Tokens, *, seed: int, batch_size: int, seq_len: int) -> None:
        self._windows, self._batch_size = Windows(tokens, seq_len), batch_size
        size = len(self._windows)
        # 2: batches at the border of two epochs, or of two plans, need both.
        self._order = lru_cache(maxsize=2)(lambda epoch: Permutation(size, seed, epoch))
        self._planned = lru_cache(maxsize=2)(self._plan)

    def __getitem__(self, batch: int) -> Tensor:
        """Returns a batch: int64, [batch_size, seq_len + 1]."""
        plan, place = divmod(batch, PLANNED)
        return self._windows.take(self._planned(plan)[place])

    def _plan(self, plan: int) -> np.typing.NDArray[np.int64]:
        """Returns the numbers of the windows of PLANNED batches, [PLANNED, batch_size]."""
        size = PLANNED * self._batch_size
        epochs, positions = np.divmod(np.arange(plan * size, (plan + 1) * size), len(self._windows))
        # A plan may hold parts of several epochs, each with its own order.
        for epoch in np.unique(epochs):
            positions[epochs == epoch] = self._order(int(epoch))(positions[epochs == epoch])
        return positions.reshape(PLANNED, self._batch_size)

    def epochs(self, num_batches: int) -> float:
        """Returns how many epochs `num_batches` batches make."""
        return num_batches * self._batch_size / len(self._windows)


class Prefetched:
    """Batches on a GPU; while one is used, a thread reads the next into pinned memory.

    From pinned memory the copy goes on while the host launches kernels, and torch keeps that memory
    until the copy is done. Only the thread calls `read_batch(t)` and `pin`. An error of either is
    raised when the batch is asked for.
    """

    def __init__(
        self,
        read_batch: Callable[[int], Tensor],
        device: torch.device,
        pin: Callable[[Tensor], Tensor] = Tensor.pin_memory,
    ) -> None:
        self._read, self._device, self._pin = read_batch, device, pin
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: dict[int, Future[Tensor]] = {}

    def __call__(self, batch: int) -> Tensor:
        """Returns any batch by its number; the next batch is read meanwhile."""
        ready = self._next.get(batch) or self._thread.submit(self._ready, batch)
        # Submitted before the wait below, so that the thread goes on at once.
        self._next = {batch + 1: self._thread.submit(self._ready, batch + 1)}
        return ready.result().to(self._device, non_blocking=True)

    def _ready(self, batch: int) -> Tensor:
        return self._pin(self._read(batch))
