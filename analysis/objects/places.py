"""Where this machine reads a store: in its folder or, of an object store, in a copy."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from analysis.objects.bucket import Bucket
from analysis.objects.mirror import URL, Mirror
from trainer.base.places import is_url, require_folder


def place(word: str | Path) -> Path:
    """The folder in which a store is read, which need not exist. Raises BadInput for what can be
    none."""
    if is_url(str(word)):
        return Mirror(Bucket(str(word))).path
    require_folder("results", str(word))
    return Path(word)


def named(folder: Path) -> str:
    """What people call the store that is read in `folder`: its URL, if this is a copy."""
    with suppress(OSError, UnicodeDecodeError):
        return (folder / URL).read_text().strip()
    return str(folder)


def pulled(word: str | Path) -> Path:
    """The same, with what the store has now. Raises StoreAway if it does not answer."""
    if is_url(str(word)):
        Mirror(Bucket(str(word))).pull()
    return place(word)
