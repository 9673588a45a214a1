"""Checkpoints that are written while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class Writer:
    """A thread that does one thing after another; its errors are raised by the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._last: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Starts this work, after what was started before."""
        self.wait()
        self._last = self._thread.submit(work)

    def wait(self) -> None:
        """Returns when nothing is left to do."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """The same, at the end."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def copied(state: Any) -> Any:
    """A copy of a state, mappings and lists of tensors and plain values, in the CPU's memory.

    Tensors that share memory, as the master and its newest version may, share it in the copy.
    """
    return _copied(state, {})


def _copied(node: Any, known: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(node, Tensor):
        storage = node.untyped_storage()
        if (key := storage.data_ptr()) not in known:
            known[key] = storage.cpu() if storage.is_cuda else storage.clone()
        empty = torch.empty(0, dtype=node.dtype)
        return empty.set_(known[key], node.storage_offset(), node.size(), node.stride())
    if isinstance(node, dict):
        return {key: _copied(of, known) for key, of in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_copied(of, known) for of in node)
    return node
