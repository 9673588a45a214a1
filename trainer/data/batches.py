"""Batches as a pure function of (seed, index): no state to save, nothing to skip on a resume."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from trainer.base.errors import BadInput
from trainer.data.permutation import Permutation
from trainer.data.tokens import Tokens

PLANNED = 64
"""Batches whose windows are drawn at once. One at a time, this is a twentieth of a small update."""


class Windows:
    """All whole windows of seq_len + 1 tokens, stride seq_len, in order.

    So each token of a whole window but the first is predicted once. Raises BadInput if the tokens
    are too few for one window.
    """

    def __init__(self, tokens: Tokens, seq_len: int) -> None:
        self._tokens, self._seq_len = tokens, seq_len
        if not len(self):
            allowed = f"must be below the {len(tokens)} tokens of a split of the data"
            raise BadInput("seq_len", seq_len, allowed)

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._seq_len)

    def batches(self, size: int, num_tokens: int | None = None) -> Iterator[Tensor]:
        """Yields the windows in order, `size` at a time and the rest at last; or as many as predict
        `num_tokens`, at least one, evenly spread over the split.
        """
        num_windows = len(self)
        if num_tokens is not None:
            num_windows = min(num_windows, max(1, num_tokens // self._seq_len))
        indices = np.arange(num_windows) * len(self) // num_windows
        for first in range(0, num_windows, size):
            yield self.take(indices[first : first + size])

    def take(self, indices: np.typing.NDArray[np.int64]) -> Tensor:
        """The windows with these numbers: int64, [windows, seq_len + 1]."""
        rows = [self._tokens.read(int(i) * self._seq_len, self._seq_len + 1) for i in indices]
        return torch.from_numpy(np.stack(rows))


class Batches:
    """Batch t: the t-th `batch_size` windows, each epoch in its own random order.

    Window i of the run is a function of (seed, i) alone, whatever ran before it.
    """

    def __init__(self, tokens: Tokens, *, seed: int, batch_size: int, seq_len: int) -> None:
        self._windows, self._batch_size = Windows(tokens, seq_len), batch_size
        self._order = lru_cache(maxsize=2)(
            lambda epoch: Permutation(len(self._windows), seed, epoch)
        )
        self._planned = lru_cache(maxsize=2)(self._plan)

    def __getitem__(self, batch: int) -> Tensor:
        """int64, [batch_size, seq_len + 1]."""
        plan, place = divmod(batch, PLANNED)
        return self._windows.take(self._planned(plan)[place])

    def _plan(self, plan: int) -> np.typing.NDArray[np.int64]:
        """The windows of as many batches, [PLANNED, batch_size]."""
        size = PLANNED * self._batch_size
        epochs, positions = np.divmod(np.arange(plan * size, (plan + 1) * size), len(self._windows))
        for epoch in np.unique(epochs):
            positions[epochs == epoch] = self._order(int(epoch))(positions[epochs == epoch])
        return positions.reshape(PLANNED, self._batch_size)

    def epochs(self, num_batches: int) -> float:
        """How many epochs `num_batches` batches make."""
        return num_batches * self._batch_size / len(self._windows)
