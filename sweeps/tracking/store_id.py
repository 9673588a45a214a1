"""A name for a store, so that trials of two stores are two runs where both are tracked."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

FILE = "store_id"


def store_id(store: Path) -> str:
    """8 hexadecimal digits, made once: of several processes that ask first, one decides.

    They move with the store. Raises OSError if it can be neither read nor written.
    """
    path = store / FILE
    with suppress(FileNotFoundError):
        return path.read_text().strip()
    partial = path.with_name(f".{FILE}.{secrets.token_hex(8)}.partial")
    partial.write_text(f"{secrets.token_hex(4)}\n")
    try:
        with suppress(FileExistsError):
            os.link(partial, path)  # whole or not at all, and never over another
    finally:
        partial.unlink()
    return path.read_text().strip()
