"""A callback that must not take more than a small share of its caller's time."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.02
"""The largest share of the time that the work may take."""


class Throttled:
    """Calls `work` when it is called itself, unless it did so a moment ago.

    Two calls of `work` start at least `every` seconds apart, or so far that it takes at most SHARE
    of the time. `clock` returns seconds.
    """

    def __init__(
        self, work: Callable[[], None], every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work, self._every, self._clock = work, every, clock
        self._next = clock()

    def __call__(self) -> None:
        """Calls `work` if it is time."""
        started = self._clock()
        if started < self._next:
            return
        self._work()
        ended = self._clock()
        self._next = ended + max(self._every, (ended - started) / SHARE)
