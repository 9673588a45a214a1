"""What is done again and again beside the work of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(action: Callable[[], bool], every: float, name: str) -> Iterator[None]:
    """Calls `action` every so many seconds, from a thread of this name, while the context lasts and
    as long as it returns True. A call that has begun ends before the context does."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every) and action():
            pass

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
