"""The files of a trial's folder as people may have left them."""

from collections.abc import Sequence
from pathlib import Path

from trainer.base.errors import BadInput, some

MARKER = "trial_id"
"""The file that says whose folder it is."""


class Damaged(BadInput):
    """A file that somebody has to repair or delete; the text is one line: file, what is wrong."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__("file", path, why)
        self.path = path


def said(damaged: Sequence[Damaged]) -> str:
    """Which files are damaged, and how: the first of them, and the number of the others."""
    return some([f"{error.value} {error.allowed}" for error in damaged])


def in_a_line(damaged: Sequence[Damaged], repair: str) -> str:
    """The line that says which files are damaged, how, and what to do about it."""
    return f"not counted, because damaged: {said(damaged)}: {repair}, or delete what is damaged"


def damage(path: Path, error: Damaged | OSError) -> Damaged:
    """What is wrong with a file, for readers that leave out what they cannot read."""
    if isinstance(error, Damaged):
        return error
    return Damaged(path, f"cannot be read ({error.strerror})")


def content(path: Path) -> bytes:
    """The bytes of a file. Raises FileNotFoundError, or Damaged for a folder in its place."""
    try:
        return path.read_bytes()
    except IsADirectoryError:
        raise Damaged(path, "is a folder, where a file must be") from None


def recorded_id(folder: Path) -> str | None:
    """The id of the trial whose folder it is; None if its marker is missing. Raises Damaged."""
    path = folder / MARKER
    try:
        trial_id = content(path).decode().strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (Damaged, UnicodeDecodeError):
        trial_id = ""
    if not trial_id.isalnum():
        raise Damaged(path, f"names no trial: delete it if this is {folder.name}'s folder")
    return trial_id
