"""Signals ask to stop: Ctrl-C, SIGTERM (Slurm, Kubernetes, `ray job stop`), a lost terminal."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


def _say(message: str) -> None:
    """Prints on stderr. A terminal that was closed is replaced by the null device: what is said to
    nobody must not fail the trial."""
    try:
        print(message, file=sys.stderr, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            if stream == 2 or os.path.sameopenfile(1, 2):
                os.dup2(null, stream)
        os.close(null)


@contextmanager
def stopping(says: str) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether a signal asked to stop.

    The first signal only asks, and prints the message `says`. A second one acts as usual. In a
    thread none asks: Python hands signals to the main thread alone.
    """
    asked = False
    previous: dict[int, Any] = {}

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(number, previous[number])
        _say(f"{signal.Signals(number).name}: {says}")

    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ():
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup makes it
            previous[number] = signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for stop, handler in previous.items():
            signal.signal(stop, handler)
