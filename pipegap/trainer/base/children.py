"""What ends with a process: its child processes, its threads, its temporary folders."""

import atexit
import multiprocessing
import os
import shutil
import signal
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from itertools import chain, islice
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import ParamSpec, Self, TypeVar

from pipegap.trainer.base.cli import stops_for_this_process_alone
from pipegap.trainer.base.errors import BadInput, Stopped, Unavailable

Arguments = ParamSpec("Arguments")
Thing = TypeVar("Thing")
Made = TypeVar("Made")
ALONE = 2
"""How many things are done in this process before workers are started, which takes a second."""
AHEAD = 2
"""How many things per worker are submitted before their turn."""
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
        self._worker, self._apart = pool(1), apart  # no process starts before the first call
        self._calls: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._worker.shutdown(cancel_futures=kind is not None)
        if kind is None:
            self.wait()

    def wait(self) -> None:
        """Returns when all calls are done; raises the first error of one."""
        for call in self._calls:
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
        self._calls.append(self._worker.submit(function, *args, **options))


def _serve() -> None:
    """Prepares a worker, which ends with its parent however the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to both; the parent acts on it
    atexit.register(os._exit, 0)  # no teardown of libraries, which takes tenths of a second
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are as many as the cores
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def repeated(action: Callable[[], bool], every: float, name: str) -> Iterator[None]:
    """Calls `action` every `every` seconds, in a thread called `name`, until it returns False or
    the context ends. The context waits for a call that has begun."""
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

    No thing is read while the sizes of the things whose results are not yet yielded add up to more
    than `most`.
    """
    iterator = iter(things)
    yield from map(function, islice(iterator, ALONE) if num_workers > 1 else iterator)
    for first in iterator:  # at most once: the workers take all that follow
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
                del thing  # it may be large, and the generator may rest at `yield` for long
                while len(waiting) > AHEAD * num_workers or sum(part for _, part in waiting) > most:
                    yield waiting.popleft()[0].result()
            while waiting:
                yield waiting.popleft()[0].result()
        finally:  # also when the reader of the results stops early
            workers.shutdown(cancel_futures=True)


def num_cores(groups: Path = GROUPS, cgroup_file: Path = Path("/proc/self/cgroup")) -> int:
    """The number of cores of the process's affinity (taskset, Slurm), or less by a container's
    quota.

    A quota below one core counts as one. `groups` is Linux's tree of control groups, and
    `cgroup_file` names the process's place in it.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *_quotas(groups, cgroup_file)]))


def load() -> str:
    """Returns a clause about how many processes want how many cores of this machine."""
    return f"{os.getloadavg()[0]:.0f} processes of this machine want {num_cores()} cores"


def _quotas(groups: Path, cgroup_file: Path) -> Iterator[int]:
    """The quotas, in whole cores, of the process's group and of all above it."""
    with suppress(OSError, ValueError):  # control groups of version 1; without a quota, -1
        folder = groups / "cpu"
        quota, period = (
            int((folder / f"cpu.cfs_{name}_us").read_text("utf-8")) for name in ("quota", "period")
        )
        if quota > 0:
            yield quota // period
    with suppress(OSError):  # version 2, whose lines begin with 0::
        for line in cgroup_file.read_text("utf-8").splitlines():
            group = groups / line.removeprefix("0::/")
            for folder in (group, *group.parents) if line.startswith("0::/") else ():
                with suppress(OSError, ValueError):  # there is none, or it is `max`
                    limit, length = map(int, (folder / "cpu.max").read_text("utf-8").split())
                    yield limit // length


# Temporary folders of a process, which the next process deletes if this one was killed; and the
# folder of torch's compiler, in which a killed process may leave truncated files.

LONGEST_BASE = 20
"""Characters of a folder below which sockets lie: Linux allows 107 for a socket's path, and Ray and
multiprocessing append many."""
WRITTEN_IN_PLACE = {".so", ".gch"}
"""Suffixes of files that g++ writes under their final names, so that a kill truncates them. torch
renames all its other files when they are complete."""


def socket_base(preferred: str = "") -> Path:
    """Returns a folder for temporary files with sockets: `preferred`, or else that of TMPDIR; but
    /tmp if that is too long, or not in ASCII, which is all that Ray reads."""
    base = Path(preferred or gettempdir())
    return base if len(str(base)) <= LONGEST_BASE and str(base).isascii() else Path("/tmp")


@contextmanager
def scratch(
    base: Path, prefix: str, on_left: Callable[[Path], None] = lambda folder: None
) -> Iterator[Path]:
    """Yields a new folder in `base`, which is deleted at the end of the context.

    After an error, or a kill, the next `scratch` with this prefix calls `on_left` with the folder
    and deletes it. This process locks the folder as long as it lives, which tells others that it is
    in use. Raises Unavailable if no folder can be made.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        # With a dot: `_clean` of another process does not see it before it is locked.
        hidden_folder = Path(mkdtemp(dir=base, prefix=f".{prefix}"))
    except OSError as error:
        raise Unavailable(f"no temporary folder can be made in {base} ({error.strerror})") from None
    _clean(base, prefix, on_left)
    lock = _locked(hidden_folder)
    try:
        folder = hidden_folder.rename(base / hidden_folder.name[1:])
        yield folder
        shutil.rmtree(folder, ignore_errors=True)  # a dying process may still write
    finally:
        os.close(lock)


def _clean(base: Path, prefix: str, on_left: Callable[[Path], None]) -> None:
    """Deletes the folders in `base` of processes that no longer live."""
    for folder in base.glob(f"{prefix}*"):
        with suppress(OSError):  # of a living process, of another user, or gone
            lock = _locked(folder)
            try:
                on_left(folder)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(folder: Path) -> int:
    """The descriptor of a folder that holds its lock. Raises OSError if another process does."""
    # Not through a link: in a shared /tmp somebody else may have laid one.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def compiler() -> str:
    """The name of the C++ compiler that torch's own compiler runs."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def require_compiler() -> None:
    """Raises BadInput if torch cannot compile for this machine's CPU: it needs a C++ compiler and
    Python's headers."""
    program = compiler()
    headers = Path(sysconfig.get_path("include"), "Python.h")
    for what, is_there in (
        (f"a C++ compiler, {program}", shutil.which(program) is not None),
        (f"Python's headers, {headers}", headers.is_file()),
    ):
        if not is_there:
            allowed = f"needs {what}, which this machine does not have; compile=false does without"
            raise BadInput("compile", "update", allowed)


@contextmanager
def compiling() -> Iterator[None]:
    """A context in which this process compiles; its compilers go on when it is asked to stop.

    At its start it deletes files that killed processes may have left truncated. torch takes every
    library in its folder (TORCHINDUCTOR_CACHE_DIR) for a whole one. A truncated one would fail
    every later process, or make the compiler believe that the processor has no vector instructions.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # imports the compiler

    folder = Path(cache_dir())

    def delete_since(mark: Path) -> None:
        # `mark` is the folder of a killed process, as old as its start.
        since = mark.stat().st_mtime_ns
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.suffix in WRITTEN_IN_PLACE and path.stat().st_mtime_ns >= since:
                    path.unlink()

    with scratch(folder, "pipegap-", delete_since) as mark, stops_for_this_process_alone():
        try:
            yield
        except Stopped as stopped:
            if stopped.__cause__ is None:  # else a compiler may have been killed at work
                mark.rmdir()
            raise
