"""Trackers that misbehave, for the tests."""

import threading

from pipegap.sweeps.tracking.tracker import About
from pipegap.trainer.folder.result import Row

NEVER = threading.Event()


class Hangs:
    """Sleeps for ever in one of its methods."""

    def __init__(self, about: About, *, where: str) -> None:
        self._where = where
        self._reach("start")

    def _reach(self, here: str) -> None:
        if here == self._where:
            NEVER.wait()

    def log(self, row: Row) -> None:
        self._reach("log")

    def finish(self, outcome: Row) -> None:
        self._reach("finish")


class Raises(Hangs):
    """Raises there instead."""

    def _reach(self, here: str) -> None:
        if here == self._where:
            raise SystemExit(f"no\n{here}")
