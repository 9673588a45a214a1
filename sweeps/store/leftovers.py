"""Files that a process wrote for a moment, and left because it was killed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainer.folder.lease import STALE_AFTER


def clean_old(folder: Path, pattern: str, newest: Path) -> None:
    """Deletes the files of `folder` that match `pattern`, unless a living process may write them.

    Such a file lives for less than a second. It is old if it is STALE_AFTER older than the file
    `newest`, which was written just now: the clock is that of the file system.
    """
    with suppress(OSError):  # another driver cleans too
        now = newest.stat().st_mtime
        for left in folder.glob(pattern):
            if left.stat().st_mtime < now - STALE_AFTER:
                left.unlink(missing_ok=True)
