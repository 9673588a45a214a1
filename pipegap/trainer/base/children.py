"""Work beside that of a process: in processes that end with it, and by a thread that repeats it;
and how many cores there are for it."""

import atexit
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

Arguments = ParamSpec("Arguments")
Thing = TypeVar("Thing")
Made = TypeVar("Made")
ALONE = 2
"""Things that are done in this process before workers are started, which takes a second."""
AHEAD = 2
"""Things per worker that are read before their turn."""
GROUPS = Path("/sys/fs/cgroup")


def pool(num_workers: int) -> ProcessPoolExecutor:
    """Workers, each started when it is first needed, which takes a second or more."""
    context = multiprocessing.get_context("spawn")  # a fork would copy locks of threads
    return ProcessPoolExecutor(num_workers, context, _serve)


class Worker:
    """A context with one worker, for calls that nothing waits for.

    The context ends when all calls are done, and raises the first error of a call. A worker that is
    not `apart` makes each call at once, in this process.
    """

    def __init__(self, *, apart: bool = True) -> None:
        self._worker, self._apart = pool(1), apart
        self._begun: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._worker.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()

    def wait(self) -> None:
        """Returns when all calls are done; raises the first error of one."""
        for call in self._begun:
            call.result()

    def do(
        self,
        function: Callable[Arguments, None],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> None:
        """Calls a module's function in the worker, after all earlier calls."""
        if not self._apart:
            function(*args, **options)
            return
        self._begun.append(self._worker.submit(function, *args, **options))


def _serve() -> None:
    """Ends this process with its parent, however the parent dies. Ctrl-C is for the parent.

    When nothing is left to do it ends at once: to take libraries down takes tenths of a second.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    atexit.register(os._exit, 0)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def repeated(action: Callable[[], bool], every: float, name: str) -> Iterator[None]:
    """Calls `action` every so many seconds, from a thread of this name, while the context lasts and
    as long as it returns True. A call that has begun ends before the context does."""
    stop_event = threading.Event()

    def work() -> None:
        while not stop_event.wait(every) and action():
            pass

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop_event.set()
        thread.join()


def mapped(
    function: Callable[[Thing], Made],
    things: Iterable[Thing],
    num_workers: int,
    size: Callable[[Thing], int],
    most: int,
) -> Iterator[Made]:
    """Yields `function` of each thing, in order; few things or one worker need no process.

    No thing is read while the sizes of those before, of which nothing was yielded yet, are more
    than `most`.
    """
    iterator = iter(things)
    yield from map(function, islice(iterator, ALONE) if num_workers > 1 else iterator)
    for first in iterator:
        yield from _by_workers(function, chain([first], iterator), num_workers, size, most)


def _by_workers(
    function: Callable[[Thing], Made],
    things: Iterator[Thing],
    num_workers: int,
    size: Callable[[Thing], int],
    most: int,
) -> Iterator[Made]:
    with pool(num_workers) as workers:
        waiting: deque[tuple[Future[Made], int]] = deque()
        try:
            for thing in things:
                waiting.append((workers.submit(function, thing), size(thing)))
                del thing  # it may be large
                while len(waiting) > AHEAD * num_workers or sum(part for _, part in waiting) > most:
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
        finally:
            workers.shutdown(cancel_futures=True)


def num_cores(groups: Path = GROUPS, cgroup_file: Path = Path("/proc/self/cgroup")) -> int:
    """The cores of the process's affinity (taskset, Slurm), or fewer by a quota of a container.

    A quota of less than a core counts as one. `groups` is Linux' tree of control groups, and
    `cgroup_file` names the process's place in it.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(groups, cgroup_file)]))


def load() -> str:
    """Says how many processes want how many cores of this machine."""
    return f"{os.getloadavg()[0]:.0f} processes of this machine want {num_cores()} cores"


def _quotas(groups: Path, cgroup_file: Path) -> Iterator[int]:
    """The quotas, in whole cores, of the process's group and of all above it."""
    with suppress(OSError, ValueError):  # version 1
        folder = groups / "cpu"
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text("utf-8")) for name in ("quota", "period")
        )
        if quota > 0:
            yield quota // period
    with suppress(OSError):
        for line in cgroup_file.read_text("utf-8").splitlines():
            group = groups / line.removeprefix("0::/")
            for folder in (group, *group.parents) if line.startswith("0::/") else ():
                with suppress(OSError, ValueError):  # there is none, or it is `max`
                    limit, length = map(int, (folder / "cpu.max").read_text("utf-8").split())
                    yield limit // length
