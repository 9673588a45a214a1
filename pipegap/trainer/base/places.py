"""Where the files lie that come with the code, and which words can name a file or folder."""

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from pipegap.trainer.base.errors import NO_TEXT, BadInput

PACKAGE = Path(__file__).parents[2]
"""The folder of the package pipegap."""

CODE_ROOT = PACKAGE.parent
"""The folder in which the package lies: a checkout, or site-packages."""

CONF = PACKAGE / "conf"
"""The configs."""

MAX_NAME, MAX_PATH = 255, 4_000
"""Bytes of a file's name, and of a path. Linux allows 4,095 for a path, of which the names of files
that are written below a folder take a part."""
LIKE_URL = re.compile(r"^\w+:/|://")
"""Also `s3:/bucket`, which would be a folder named `s3:`."""


def cache_folder() -> Path:
    """Returns the folder for files that can be fetched or made again; it may not exist yet.

    It lies in XDG_CACHE_HOME if that is an absolute path, as its specification demands, or begins
    with `~`, which a shell does not expand in a quoted value; else in ~/.cache.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # the `~name` of no user
        base = base.expanduser()
    return (base if base.is_absolute() else Path.home() / ".cache") / "pipegap"


def cut(name: str, most: int) -> str:
    """Returns a name in at most `most` bytes: a longer one ends in a hash of all of it."""
    if len(name.encode()) <= most:
        return name
    # 9 is a hyphen and 8 digits; `ignore` drops a character that the cut has halved.
    return f"{name.encode()[: most - 9].decode(errors='ignore')}-{digest(name)}"


def digest(name: str) -> str:
    """Returns 8 hexadecimal digits, which tell apart names that look alike when they are cut."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def path_problem(path: str) -> str | None:
    """Returns the rule for paths that `path` breaks; None if it can be a path."""
    if not path.strip():
        return "must be a path, not empty"
    if NO_TEXT.search(path):
        return "must be a path without control characters, in UTF-8"
    if path.startswith("~"):
        return "must be written out, as nothing expands ~ here (./~ is a folder of that name)"
    names = [len(name.encode()) for name in path.split("/")]
    if max(names) > MAX_NAME or sum(names) + len(names) > MAX_PATH:
        return f"must be a path of at most {MAX_PATH:,} bytes, and {MAX_NAME} for each name in it"
    return None


def is_url(word: str) -> bool:
    """Whether a word is, or is meant as, the address of an object store and not a path."""
    return LIKE_URL.search(word) is not None


def require_folder(key: str, value: str, or_file: str = "") -> None:
    """Raises BadInput for what is not, and cannot become, a folder.

    A file may be there if its name has the ending `or_file`, such as `.csv`.
    """
    if (problem := path_problem(value)) is not None:
        raise BadInput(key, value, problem)
    may_be_file = Path(value).suffix == or_file != "" and os.path.isfile(value)
    if not may_be_file and os.path.exists(value) and not os.path.isdir(value):
        raise BadInput(key, value, "must be a folder, not a file")
    if is_url(value):
        allowed = "must be a folder: sweeps and analysis know URLs of stores, other commands do not"
        raise BadInput(key, value, allowed)
