"""Asks to stop by signals: Ctrl-C, SIGTERM (Slurm, Kubernetes, `ray job stop`), a lost terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def stopping(says: str) -> Iterator[Callable[[], bool]]:
    """Yields what tells whether a signal asked to stop; the first one only asks, and prints `says`.

    A second one acts as it does otherwise.
    """
    asked = False
    previous: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        print(f"{signal.Signals(number).name}: {says}", file=sys.stderr, flush=True)
        signal.signal(number, previous[number])

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup makes it
            previous[number] = signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for stop, handler in previous.items():
            signal.signal(stop, handler)
