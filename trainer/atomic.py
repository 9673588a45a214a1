"""Files that exist whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """After this, `path` holds all of `content`, also when the machine stops at any moment."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, content: object) -> None:
    """Likewise; raises ValueError for a number that JSON does not have."""
    write_atomically(path, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
