"""Files that exist whole or not at all, and their digests."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

SUFFIX = ".partial"
Permit = Callable[[], None]
"""Called right before a rename: if it raises, nothing changes."""


def always() -> None:
    """Permits every rename."""


@contextmanager
def partial(folder: Path, name: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Yields a temporary file in `folder`, to be filled and, after the context, published.

    No other process opens it. After the context its content is on the disk; after an error the file
    is deleted.
    """
    # Not named by pid or host name, which two containers may have in common.
    path = folder / f".{name}.{uuid4().hex}{SUFFIX}"
    try:
        with path.open("xb") as file:
            yield path, file
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def publish(filled: Path, path: Path, permit: Permit = always) -> None:
    """Renames the temporary file `filled` to `path` by `rename`, or deletes it if that fails."""
    try:
        rename(filled, path, permit)
    except BaseException:
        filled.unlink(missing_ok=True)
        raise


def rename(old: Path, new: Path, permit: Permit = always) -> None:
    """Renames a file within its folder; on return the new name is on the disk.

    `permit` is called right before the rename: if it raises, nothing changes.
    """
    permit()
    old.replace(new)
    # The name is an entry of the folder: without this a crash could undo the rename.
    descriptor = os.open(new.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not on this file system
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes, permit: Permit = always) -> None:
    """Replaces `path` by `content`. Whenever the machine stops, the file is the old or the new one.

    `permit` is that of `rename`.
    """
    with partial(path.parent, path.name) as (filled, file):
        file.write(content)
    publish(filled, path, permit)


def write_json(path: Path, content: object, permit: Permit = always) -> None:
    """`write_atomically` of JSON. Raises ValueError for an infinite number or NaN."""
    write_atomically(path, _as_json(content), permit)


def _as_json(content: object) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def create_json(path: Path, content: object) -> None:
    """`write_json` of a new file; raises FileExistsError if it exists.

    On a file system without hard links both of two simultaneous writers may succeed.
    """
    if path.exists():
        raise FileExistsError(path)
    with partial(path.parent, path.name) as (filled, file):
        file.write(_as_json(content))
    try:
        os.link(filled, path)  # unlike a rename, it fails if another writer was faster
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        rename(filled, path)
    finally:
        filled.unlink(missing_ok=True)


def partials(folder: Path) -> list[Path]:
    """Returns the temporary files of `folder`, of processes that write and of killed ones."""
    return [path for path in folder.glob(f".*{SUFFIX}") if path.is_file()]


def delete(files: Iterable[Path]) -> None:
    """Deletes files, of which some may be gone."""
    for path in files:
        path.unlink(missing_ok=True)


def clean(folder: Path, before_ns: int) -> None:
    """Deletes temporary files that were last written before `before_ns`.

    `before_ns` is a modification time of this file system, whose clock may not be the machine's.
    """
    for partial_file in partials(folder):
        with suppress(FileNotFoundError):
            if partial_file.stat().st_mtime_ns < before_ns:
                partial_file.unlink()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(files: Iterable[Path], of: Callable[[Path], str] = file_hash) -> list[str]:
    """Returns `of` of each file, which is read again only after its size or time has changed."""
    return [_digest(of, str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]


@lru_cache(maxsize=2**16)
def _digest(of: Callable[[Path], str], path: str, size: int, mtime_ns: int) -> str:
    return of(Path(path))  # size and time are there for the cache alone
