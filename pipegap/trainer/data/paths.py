"""The files that a path names, in order: one rule for folder, pattern and copy of a data set.

A path that exists is that path, and no pattern. A folder stands for all files below it, those of
linked folders too; a pattern for the files and folders that match. Names that begin with a dot are
hidden, and folders whose names begin with `__`, such as `__MACOSX`: only a path that spells them
out means them. Files come in the order of their paths, in which part-2 is before part-10 as it was
written.
"""

import bz2
import gzip
import hashlib
import lzma
import os
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, NamedTuple

from pipegap.trainer.base.atomic import digests, file_hash
from pipegap.trainer.base.errors import BadInput, some

Parts = tuple[str, ...]
"""What is left of a pattern below a folder; nothing if the folder matches, with all below it."""
ANY_FOLDERS = "**"


def _zstd(path: Path) -> IO[bytes]:
    import pyarrow  # slow

    return pyarrow.CompressedInputStream(str(path), "zstd")


OPENERS: Mapping[str, Callable[[Path], IO[bytes]]] = {
    **{".gz": gzip.open, ".zst": _zstd, ".bz2": bz2.open, ".xz": lzma.open},  # type: ignore[dict-item]
}
"""The end of a compressed file's name → what opens its content."""
BLOCK = 2**20
CUT = (EOFError, zlib.error, lzma.LZMAError)
"""What is raised, beside OSError, where a compressed file is not whole."""


def opened(path: Path) -> IO[bytes]:
    """The content of a file, which may be compressed."""
    open_it = OPENERS.get(path.suffix.lower())
    return path.open("rb") if open_it is None else open_it(path)


def kind_of(path: Path) -> str:
    """The end of a file's name, with what is compressed before how: `.jsonl.gz`."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() + suffix if suffix in OPENERS else suffix


def _as_written(path: Path) -> tuple[list[str | int], str]:
    """The key of the order of paths: numbers in them count as such."""
    parts = re.split(r"(\d+)", str(path))
    return [int(part) if odd % 2 else part for odd, part in enumerate(parts)], str(path)


class Named(NamedTuple):
    """Files in order, and the files and folders beside them that do not count."""

    files: list[Path]
    left_out: list[Path]


def named(path: str, kinds: Collection[str] = ()) -> Named:
    """The files that a path names, of these kinds, such as `.txt`, if any are given.

    A file that is named itself counts whatever its kind. Raises BadInput for what cannot be read.
    """
    root, pattern = _split(Path(path))
    if not pattern and not os.path.isdir(root):
        return Named([root], [])
    files, left_out = list[Path](), list[Path]()
    for path_found, counts in _below(root, {pattern}, frozenset()) if os.path.isdir(root) else ():
        is_of_kind = not kinds or kind_of(path_found) in kinds
        (files if counts and is_of_kind else left_out).append(path_found)
    return Named(sorted(files, key=_as_written), sorted(left_out, key=_as_written))


def _split(path: Path) -> tuple[Path, Parts]:
    """The longest part of a path that exists, and the rest."""
    parts = path.parts
    for number in range(len(parts), 0, -1):
        if os.path.lexists(root := Path(*parts[:number])):
            return root, parts[number:]
    return Path(), parts


def _below(
    folder: Path, remaining_parts: set[Parts], above: frozenset[str]
) -> Iterator[tuple[Path, bool]]:
    """Files below a folder that match, each with True; what is hidden or a loop, with False."""
    above |= {os.path.realpath(folder)}
    while (
        more := {parts[1:] for parts in remaining_parts if parts[:1] == (ANY_FOLDERS,)}
        - remaining_parts
    ):
        remaining_parts = remaining_parts | more  # `**` stands for no folder too
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadInput("data.path", folder, f"must be readable ({error.strerror})") from None
    for name in names:
        path = folder / name
        parts_below = _after(name, remaining_parts, _mark(path))
        if not parts_below:
            if () in remaining_parts:
                yield path, False
        elif not os.path.isdir(path):
            if () in parts_below:
                yield path, True
        elif os.path.realpath(path) in above:
            yield path, False
        else:
            yield from _below(path, parts_below, above)


def _mark(path: Path) -> str:
    """How the name of something hidden begins; empty for other names."""
    if path.name.startswith("."):
        return "."
    return "__" if path.name.startswith("__") and os.path.isdir(path) else ""


def _after(name: str, remaining_parts: set[Parts], mark: str) -> set[Parts]:
    """What is left of the patterns below an entry; nothing if it matches none of them."""
    stay = {parts for parts in remaining_parts if parts[:1] in ((), (ANY_FOLDERS,)) and not mark}
    return stay | {
        parts[1:]
        for parts in remaining_parts - stay
        if parts and parts[0].startswith(mark) and fnmatchcase(name, parts[0])
    }


def sentence(left_out: list[Path]) -> str:
    """What is said of files that do not count."""
    return f"leaves out {len(left_out):,} files or folders that are hidden or of another kind: " + (
        some(left_out)
    )


def digests_of(files: Sequence[Path], of: Callable[[Path], str] = file_hash) -> list[str]:
    """A digest of each file; raises BadInput for one that cannot be read."""
    try:
        for file in files:
            if os.path.exists(file) and not os.path.isfile(file):
                raise BadInput("data.path", file, "must be a file of text, or a folder")
        return digests(files, of)
    except OSError as error:
        allowed = f"must be readable ({error.strerror or error})"
        raise BadInput("data.path", error.filename or files[0].parent, allowed) from None


def text_hash(path: Path) -> str:
    """SHA-256 of what a file holds, decompressed, without the mark of byte order, which is no text.

    Raises BadInput for a compressed file that is not whole.
    """
    digest = hashlib.sha256()
    try:
        with opened(path) as file:
            if (start := file.read(len(BOM_UTF8))) != BOM_UTF8:
                digest.update(start)
            while block := file.read(BLOCK):
                digest.update(block)
    except (*CUT, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the file system, not of what it holds
            raise
        raise damaged(path, error) from None
    return digest.hexdigest()


def damaged(path: Path, error: Exception) -> BadInput:
    """The refusal of a compressed file that is not whole."""
    return BadInput("data.path", path, f"must be a whole {path.suffix} file ({error})")


def has_mark(path: Path) -> bool:
    """Whether a file begins with the mark of byte order that some editors write."""
    with path.open("rb") as file:
        return file.read(len(BOM_UTF8)) == BOM_UTF8
