"""Processes of this machine, as /proc shows them."""

from pathlib import Path


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
