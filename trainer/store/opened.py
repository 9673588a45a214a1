"""The store that a word of a command names: a folder that machines share, or an object store."""

from pathlib import Path

from pipegap.trainer.base.places import is_url, require_folder
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.objects import ObjectStore
from pipegap.trainer.store.store import SweepStore


def open_store(word: str) -> SweepStore:
    """Return the store `word`, a folder or the URL of an object store; raises BadInput.

    Asks nothing of the store yet.
    """
    if is_url(word):
        return ObjectStore(word)
    require_folder("results", word)
    return FileStore(Path(word))


def local_folder(word: str | Path) -> Path:
    """Return the folder in which this machine reads the store `word`. It need not exist.

    May also be a report's table of trials, a CSV. Raises BadInput for what can be no store.
    """
    if is_url(str(word)):
        return ObjectStore(str(word)).folder
    require_folder("results", str(word), or_file=".csv")
    return Path(word)


def pulled(word: str | Path) -> Path:
    """Return that folder with what the store has now. Raises StoreAway if it does not answer."""
    if is_url(str(word)):
        ObjectStore(str(word)).pull()
    return local_folder(word)
