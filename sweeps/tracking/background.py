"""Feeds a tracker from a thread of its own, so that no trial waits for it or fails by it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import TracebackType

from sweeps.tracking.tracker import Tracker
from trainer.errors import Stopped
from trainer.lease import LeaseLost
from trainer.record import Row

CAPACITY = 10_000
"""Rows that wait for a tracker at most; further ones are dropped, and counted."""
WITHOUT_RESULT = {Stopped: "stopped", LeaseLost: "elsewhere"}
"""The status of an attempt that an exception ended; failed by any other."""


class Background:
    """A context around one attempt at a trial.

    The tracker starts at the first row: an attempt that makes none is not tracked. At the end it
    has `wait` seconds for the rows that are left, then it is left to itself: its thread goes on
    while the process lives, and keeps it from nothing.
    """

    def __init__(self, start: Callable[[], Tracker], wait: float) -> None:
        self._start, self._wait = start, wait
        self._rows: SimpleQueue[Row | None] = SimpleQueue()
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self.outcome: Row = {"status": "failed"}
        """What the tracker is told at the end: the trial's result, to be set before."""
        self.trouble: str | None = None
        """Why the trial is not wholly tracked, in one line; None if it is."""

    def log(self, row: Row) -> None:
        """Passes a row on; at once, whatever the tracker does."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
            self._thread.start()
        if self._rows.qsize() < CAPACITY:
            self._rows.put(row)
        else:
            self._dropped += 1
            self.trouble = self.trouble or f"it is too slow: {CAPACITY} rows wait for it"

    def _work(self) -> None:
        try:
            tracker = self._start()
            while (row := self._rows.get()) is not None:
                tracker.log(row)
            tracker.finish(self.outcome)
        except BaseException as error:  # whatever a library does, SystemExit included
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        if kind is not None:
            self.outcome = {"status": WITHOUT_RESULT.get(kind, "failed")}
        self._rows.put(None)
        self._thread.join(self._wait)
        if self._thread.is_alive() and self.trouble is None:
            self.trouble = f"it was not done {self._wait:g} s after the trial's end"
        if self._dropped:
            self.trouble = f"{self.trouble} ({self._dropped} rows were dropped)"
