"""A function mapped over many things by worker processes, results in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import chain, islice
from typing import TypeVar

Thing = TypeVar("Thing")
Made = TypeVar("Made")

ALONE = 2
"""Things that are done in this process before workers are started, which takes a second."""
AHEAD = 2
"""Things per worker that are read before their turn."""


def mapped(
    function: Callable[[Thing], Made], things: Iterable[Thing], num_workers: int
) -> Iterator[Made]:
    """Yields `function` of each thing, in order; few things or one worker need no process."""
    iterator = iter(things)
    yield from map(function, islice(iterator, ALONE) if num_workers > 1 else iterator)
    for first in iterator:
        yield from _by_workers(function, chain([first], iterator), num_workers)


def _by_workers(
    function: Callable[[Thing], Made], things: Iterator[Thing], num_workers: int
) -> Iterator[Made]:
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of threads
    with ProcessPoolExecutor(num_workers, context, _serve) as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for thing in things:
                waiting.append(pool.submit(function, thing))
                if len(waiting) > AHEAD * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _serve() -> None:
    """Ends this process with its parent, however that dies. Ctrl-C is for the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
