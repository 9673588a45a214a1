"""Batches that are read while the device computes on the ones before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Prefetched:
    """Batches on a GPU; a thread reads the one after each into pinned memory.

    From there the copy goes on while the host launches kernels. Torch keeps pinned memory until
    its copy is done. `read(t)` is called by that thread alone, and `pin` makes what it returns
    quick to copy. An error in reading a batch is raised when that batch is asked for.
    """

    def __init__(
        self,
        read: Callable[[int], Tensor],
        device: torch.device,
        pin: Callable[[Tensor], Tensor] = Tensor.pin_memory,
    ) -> None:
        self._read, self._device, self._pin = read, device, pin
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: dict[int, Future[Tensor]] = {}

    def __call__(self, batch: int) -> Tensor:
        """The batch with this number, which may be any; the one after it is read meanwhile."""
        found = self._next.get(batch) or self._thread.submit(self._ready, batch)
        self._next = {batch + 1: self._thread.submit(self._ready, batch + 1)}
        return found.result().to(self._device, non_blocking=True)

    def _ready(self, batch: int) -> Tensor:
        return self._pin(self._read(batch))
