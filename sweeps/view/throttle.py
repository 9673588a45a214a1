"""Work that must not take more than a small share of somebody's time."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.02
"""Of the time, that the work may take."""


class Seldom:
    """Does `work` when told to, unless it did a moment ago.

    Between two times lie `every` seconds, or as many as make the work SHARE of them.
    """

    def __init__(
        self, work: Callable[[], None], every: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._work, self._every, self._clock = work, every, clock
        self._next = clock()

    def maybe(self) -> None:
        """Does it, if it is time."""
        started = self._clock()
        if started < self._next:
            return
        self._work()
        ended = self._clock()
        self._next = ended + max(self._every, (ended - started) / SHARE)
