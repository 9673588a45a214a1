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

# Work beside that of a process: in processes that end with it, and by a thread that repeats it;
# and how many cores there are for it.

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


# Temporary folders of a process, which the next one deletes if it was killed; and that of torch's
# compiler, in which such a process may leave cut files, and whether torch can compile.

LONGEST_BASE = 20
"""Letters of a folder below which sockets lie: Linux allows 107 for their paths, and Ray's and
multiprocessing's have many of their own."""
WRITTEN_IN_PLACE = {".so", ".gch"}
"""What g++ writes under its last name, so that it may be cut; torch renames all other files."""


def socket_base(preferred: str = "") -> Path:
    """Returns where temporary files with sockets may lie: the folder that is wanted, or else that
    of TMPDIR, or else /tmp where it is too long or not in ASCII, which is all that Ray reads."""
    base = Path(preferred or gettempdir())
    return base if len(str(base)) <= LONGEST_BASE and str(base).isascii() else Path("/tmp")


@contextmanager
def scratch(
    base: Path, prefix: str, on_left: Callable[[Path], None] = lambda folder: None
) -> Iterator[Path]:
    """Yields a new folder in `base`, which is deleted at the end; after an error the next start
    with this prefix deletes it, and first calls `on_left` with it.

    Its lock is held as long as this process lives, and tells others that the folder is in use.
    Raises Unavailable if no folder can be made.
    """
    try:
        base.mkdir(parents=True, exist_ok=True)
        scratch_folder = Path(mkdtemp(dir=base, prefix=f".{prefix}"))
    except OSError as error:
        raise Unavailable(f"no temporary folder can be made in {base} ({error.strerror})") from None
    _clean(base, prefix, on_left)
    lock = _locked(scratch_folder)
    try:
        folder = scratch_folder.rename(
            base / scratch_folder.name[1:]
        )  # only now can `_clean` see it
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
    """The descriptor of a folder, whose lock it holds. Raises OSError if another process does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def compiler() -> str:
    """The name of the C++ compiler that torch's compiler would take itself."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def require_compiler() -> None:
    """Raise BadInput if torch cannot compile for this machine's CPU: it needs a C++ compiler and
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
    """Lets this process compile, and its compilers go on to their end when it is asked to stop;
    what killed processes may have left cut is deleted before.

    torch takes a library that is in its folder (TORCHINDUCTOR_CACHE_DIR) for a whole one. A cut one
    would fail every later process, or make the compiler believe that the processor has no vectors.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir  # imports the compiler

    folder = Path(cache_dir())

    def delete_since(mark: Path) -> None:
        since = mark.stat().st_mtime_ns
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                if path.suffix in WRITTEN_IN_PLACE and path.stat().st_mtime_ns >= since:
                    path.unlink()

    with scratch(folder, "pipegap-", delete_since) as mark, stops_for_this_process_alone():
        try:
            yield
        except Stopped as stopped:
            if stopped.__cause__ is None:  # else a compiler may have been killed, and its file cut
                mark.rmdir()
            raise
