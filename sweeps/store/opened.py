"""The store that a word of a command names."""

from __future__ import annotations

from pathlib import Path

from sweeps.store.files import FileStore
from sweeps.store.objects import ObjectStore
from sweeps.store.store import Store
from trainer.base.places import is_url


def open_store(word: str) -> Store:
    """`word`: a folder, or the URL of an object store. Asks nothing of it yet. Raises BadInput."""
    return ObjectStore(word) if is_url(word) else FileStore(Path(word))
