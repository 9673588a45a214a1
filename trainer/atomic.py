"""Files that exist whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".partial"


@contextmanager
def partial(folder: Path, name: str) -> Iterator[tuple[Path, BinaryIO]]:
    """A file to fill and, after this, to rename; it is on the disk then, or gone after an error."""
    path = folder / f".{name}.{os.getpid()}{SUFFIX}"
    try:
        with path.open("wb") as file:
            yield path, file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """After this, `path` holds all of `content`, also when the machine stops at any moment."""
    with partial(path.parent, path.name) as (filled, file):
        file.write(content)
    filled.replace(path)


def write_json(path: Path, content: object) -> None:
    """Likewise; raises ValueError for a number that JSON does not have."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def clean(folder: Path) -> None:
    """Removes what a killed process left half-written; only where nobody writes now."""
    for left in folder.glob(f".*{SUFFIX}"):
        left.unlink(missing_ok=True)
