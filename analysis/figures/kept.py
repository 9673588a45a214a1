"""What takes long to make and depends on installed code alone, kept for later processes."""

import hashlib
from collections.abc import Callable
from contextlib import suppress

from trainer.base.atomic import write_atomically
from trainer.base.places import cache_folder


def kept(make: Callable[[], bytes], *made_of: str) -> bytes:
    """Return what `make` makes, or what another process made before of the same `made_of`.

    It lies in `~/.cache/pipegap/made` (or below XDG_CACHE_HOME); where nothing can be written,
    nothing is kept.
    """
    path = cache_folder() / "made" / hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    with suppress(OSError):
        return path.read_bytes()
    content = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    return content
