"""What takes long to make and depends on installed code alone, kept for later processes."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from pipegap.trainer.base.atomic import write_atomically
from pipegap.trainer.base.places import cache_folder

DIGEST = hashlib.sha256().digest_size
"""Bytes before the content: its digest."""


def kept(make: Callable[[], bytes], *made_of: str) -> bytes:
    """Return what `make` makes, or what another process made before of the same `made_of`.

    It lies in `~/.cache/pipegap/made` (or below XDG_CACHE_HOME). A file that is damaged is made
    anew, and where nothing can be written nothing is kept.
    """
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    with suppress(OSError):
        known = (cache_folder() / "made" / name).read_bytes()
        if hashlib.sha256(known[DIGEST:]).digest() == known[:DIGEST]:
            return known[DIGEST:]
    content = make()
    with suppress(OSError):
        (cache_folder() / "made").mkdir(parents=True, exist_ok=True)
        whole = hashlib.sha256(content).digest() + content
        write_atomically(cache_folder() / "made" / name, whole)
    return content


def source(*modules: ModuleType) -> str:
    """Return the code of modules; of a package, that of all modules right in it."""
    files: list[Path] = []
    for module in modules:
        file = Path(module.__file__ or "")
        files += sorted(file.parent.glob("*.py")) if hasattr(module, "__path__") else [file]
    return "".join(file.read_text() for file in files)
