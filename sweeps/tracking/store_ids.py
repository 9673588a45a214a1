"""A name for a store, so that trials of two stores are two runs where both are tracked."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from pathlib import Path

FILE = "store_id"
PATIENCE = 5.0
"""Seconds that the process that made the file is given to write it."""


def store_id(store: Path) -> str:
    """8 hexadecimal digits, made once: of several processes that ask first, one decides.

    They move with the store. Raises OSError if it can be neither read nor written.
    """
    path = store / FILE
    # Exclusive creation, which the leases need as well: not every file system has hard links.
    with suppress(FileExistsError), path.open("x") as file:
        file.write(f"{secrets.token_hex(4)}\n")
    deadline = time.monotonic() + PATIENCE
    while not (found := path.read_text()).endswith("\n"):
        if time.monotonic() > deadline:
            raise OSError(f"{path} is not whole: delete it")
        time.sleep(0.01)
    return found.strip()
