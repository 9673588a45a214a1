"""Processes of this machine, as /proc shows them."""

import subprocess
import sys
from pathlib import Path
from typing import Any


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words to its end."""
    command = [sys.executable, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children(parent: int) -> list[int]:
    """Processes that `parent` started."""
    return [*map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]
