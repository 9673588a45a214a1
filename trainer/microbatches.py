"""A batch in microbatches, addressed alike by both executors."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from trainer.operations import Op, Schedule


class Microbatches:
    """Inputs and targets of an operation's microbatch, each int64 [rows, seq_len].

    `batch(t)` is an int64 tensor [batch_size, seq_len + 1]; replica r of R takes its r-th part, in
    num_microbatches equal parts. As many batches are kept as may be in flight.
    """

    def __init__(
        self, batch: Callable[[int], Tensor], schedule: Schedule, num_replicas: int
    ) -> None:
        self._batch = lru_cache(maxsize=schedule.num_stages + 1)(batch)
        self._num_microbatches, self._num_replicas = schedule.num_microbatches, num_replicas

    def __call__(self, op: Op, replica: int) -> tuple[Tensor, Tensor]:
        """What the first stage reads and the last one must predict."""
        parts = self._batch(op.batch).chunk(self._num_microbatches * self._num_replicas)
        rows = parts[replica * self._num_microbatches + op.microbatch]
        return rows[:, :-1], rows[:, 1:]
