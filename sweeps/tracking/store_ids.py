"""The id of a store, by which a tracker tells trials of two stores apart."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path

FILE = "store_id"
WRITE_TIMEOUT = 5.0
"""Seconds to wait for the process that created the file to write it."""


def read_store_id(store: Path) -> str:
    """The id of a store, 8 hexadecimal digits in a file of it; makes one if there is none yet.

    If several processes do so at once, one of them decides. Raises OSError if the file can be
    neither read nor written.
    """
    path = store / FILE
    # The leases need exclusive creation as well. Not every file system has hard links.
    with suppress(FileExistsError), path.open("x") as file:
        file.write(f"{secrets.token_hex(4)}\n")
    deadline = time.monotonic() + WRITE_TIMEOUT
    while not (found := path.read_text()).endswith("\n"):
        if time.monotonic() > deadline:
            raise OSError(f"{path} is not whole: delete it")
        time.sleep(0.01)
    return found.strip()
