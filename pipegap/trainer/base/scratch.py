"""Temporary folders of a process, which the next one deletes if it was killed; and that of torch's
compiler, in which such a process may leave cut files, and whether torch can compile."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from pipegap.trainer.base.cli import stops_for_this_process_alone
from pipegap.trainer.base.errors import BadInput, Stopped, Unavailable

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
