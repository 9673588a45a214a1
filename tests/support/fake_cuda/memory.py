"""The bytes of a fake GPU, as torch's allocator would count them: blocks of 512 bytes."""

import threading
import weakref

from torch import Tensor

BLOCK = 512


class Memory:
    """Counts the storages that live on the GPU."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self._known: set[int] = set()
        self._lock = threading.RLock()  # a tensor may die in the thread of a backward

    def track(self, tensor: Tensor) -> None:
        if tensor.device.type != "cuda":
            return
        storage = tensor.untyped_storage()
        size, key = -(-storage.nbytes() // BLOCK) * BLOCK, storage._cdata
        with self._lock:
            if key in self._known:
                return
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size)

    def restart(self) -> None:
        """The peak begins anew at what lives now."""
        self.peak = self.live

    def _free(self, key: int, size: int) -> None:
        with self._lock:
            self._known.discard(key)
            self.live -= size
