"""The bytes of a fake GPU, as torch's allocator would count them: blocks of 512 bytes."""

import threading
import weakref
from collections import Counter
from collections.abc import Callable

from torch import Tensor

BLOCK = 512


class Memory:
    """Counts the storages that live on the GPU. With `names` also how much lived at the peak, by
    the place that made it."""

    def __init__(self) -> None:
        self.live = self.peak = 0
        self.names: Callable[[], str] | None = None
        self.at_peak: Counter[str] = Counter()
        self._by_place: Counter[str] = Counter()
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
            place = self.names() if self.names else ""
            self._by_place[place] += size
            self.live += size
            if self.live > self.peak:
                self.peak = self.live
                self.at_peak = Counter(self._by_place) if self.names else self.at_peak
        weakref.finalize(storage, self._free, key, size, place)

    def restart(self) -> None:
        """The peak begins anew at what lives now."""
        self.peak = self.live

    def _free(self, key: int, size: int, place: str) -> None:
        with self._lock:
            self._known.discard(key)
            self._by_place[place] -= size
            self.live -= size
