"""Digests of files, read again only if a file was changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(files: Iterable[Path]) -> list[str]:
    """SHA-256 of each file; of one that has kept its size and time as this process knows it."""
    return [_known(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


@lru_cache(maxsize=2**16)
def _known(path: str, size: int, changed: int) -> str:
    return file_hash(Path(path))
