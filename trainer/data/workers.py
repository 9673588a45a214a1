"""A function mapped over many things by worker processes, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import chain, islice
from typing import TypeVar

from trainer.base.children import pool

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
    with pool(num_workers) as workers:
        waiting: deque[Future[Made]] = deque()
        try:
            for thing in things:
                waiting.append(workers.submit(function, thing))
                if len(waiting) > AHEAD * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            workers.shutdown(cancel_futures=True)
