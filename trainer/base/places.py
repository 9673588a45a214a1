"""Where the files lie that come with the code, and which words can name a file or folder."""

import errno
import os
import re
from pathlib import Path

from trainer.base.errors import NO_TEXT, BadInput

_PACKAGE = Path(__file__).parents[1]

CODE_ROOT = _PACKAGE.parent
"""The folder of the packages trainer, sweeps and analysis: a checkout, or site-packages."""

_INSTALLED = _PACKAGE / "conf"

CONF = _INSTALLED if _INSTALLED.is_dir() else CODE_ROOT / "conf"
"""The configs: conf/ of a checkout, which setup.py installs as trainer/conf."""

FORMER_SCALES = {"tiny": "few_updates", "long": "tiny"}
"""Name of a scale before version 0.2 → its name since then."""

MAX_NAME, MAX_PATH = 255, 4_000
"""Bytes of a file's name and of a path, as file systems have them. What is written below a folder
makes its path longer."""
LIKE_URL = re.compile(r"^\w+:/|://")
"""Also `s3:/bucket`, which would be a folder named `s3:`."""


def path_problem(path: str) -> str | None:
    """Returns what a path must be and `path` is not; None if `path` can be a path."""
    if not path.strip():
        return "must be a path, not empty"
    if NO_TEXT.search(path):
        return "must be a path without control characters, in UTF-8"
    names = [len(name.encode()) for name in path.split("/")]
    if max(names) > MAX_NAME or sum(names) + len(names) > MAX_PATH:
        return f"must be a path of at most {MAX_PATH:,} bytes, and {MAX_NAME} for each name in it"
    return None


def is_url(word: str) -> bool:
    """Whether a word is, or is meant as, the address of an object store and not a path."""
    return LIKE_URL.search(word) is not None


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def require_folder(key: str, value: str) -> None:
    """Raises BadInput for what cannot be a folder."""
    if (problem := path_problem(value)) is not None:
        raise BadInput(key, value, problem)
    if _is_loop(value):
        raise BadInput(key, value, "must be a folder, not a loop of links")
    if is_url(value):
        allowed = "must be a folder: sweeps and analysis know URLs of stores, other commands do not"
        raise BadInput(key, value, allowed)
