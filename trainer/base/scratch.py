"""Temporary folders of a process, which the next one deletes if it was killed."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from tempfile import mkdtemp

from pipegap.trainer.base.errors import Unavailable


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
        made = Path(mkdtemp(dir=base, prefix=f".{prefix}"))
    except OSError as error:
        raise Unavailable(f"no temporary folder can be made in {base} ({error.strerror})") from None
    _clean(base, prefix, on_left)
    lock = _locked(made)
    try:
        folder = made.rename(base / made.name[1:])  # only now can `_clean` see it
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
