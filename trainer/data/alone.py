"""One process at a time prepares a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TextIO

from trainer.base.errors import BadInput

SUFFIX = ".lock"


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Waits until no other process holds the folder `out`, and holds it; a killed one holds none.

    Raises BadInput where no file can be made beside it.
    """
    lock = out.with_name(out.name + SUFFIX)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(lock)
    except OSError as error:
        raise unusable(out, error) from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        file.close()


def _locked(lock: Path) -> TextIO:
    """The file `lock`, held by this process until it is closed."""
    while True:
        file = lock.open("w")
        flock(file, LOCK_EX)
        if lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            return file
        file.close()  # of a holder that has deleted it


def unusable(out: Path, error: OSError) -> BadInput:
    """The refusal of a folder that cannot be made."""
    allowed = f"must be a new or an empty folder where one may write ({error.strerror})"
    return BadInput("out", out, allowed)
