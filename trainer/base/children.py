"""Worker processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import ParamSpec, Self

Arguments = ParamSpec("Arguments")


def pool(num_workers: int) -> ProcessPoolExecutor:
    """Workers, each started when it is first needed, which takes a second or more."""
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of threads
    return ProcessPoolExecutor(num_workers, context, _serve)


class Worker:
    """One worker for what nothing waits for: a context that ends when all of it is done, and raises
    what went wrong there. If it is not `apart`, all is done at once instead."""

    def __init__(self, *, apart: bool = True) -> None:
        self._worker, self._apart = pool(1), apart
        self._begun: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._worker.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for one in self._begun:
                one.result()

    def do(
        self,
        function: Callable[Arguments, None],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> None:
        """Calls a module's function there, after what was asked for before."""
        if not self._apart:
            function(*args, **options)
            return
        self._begun.append(self._worker.submit(function, *args, **options))


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
