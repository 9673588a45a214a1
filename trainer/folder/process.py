"""What an attempt's file says of its process, and whether that process is known to be dead."""

import os
import platform
import time
from pathlib import Path
from typing import Any

Attempt = dict[str, Any]


def new_attempt(number: int) -> Attempt:
    """What an attempt's file says of this process when it takes a trial."""
    return {
        "attempt": number,
        "host": platform.node(),
        "pid": os.getpid(),
        "machine": _machine(),
        "process_started": _process_started(os.getpid()),
        "started_at": time.time(),
    }


def is_dead(attempt: Attempt) -> bool:
    """Whether the holder is known to be a process of this machine that no longer exists."""
    if attempt.get("machine") is None or attempt["machine"] != _machine():
        return False
    return _process_started(attempt.get("pid", 0)) != attempt.get("process_started")


def _machine() -> str | None:
    """Identifies the processes that see each other, by boot and PID namespace; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _process_started(pid: int) -> str | None:
    """The start of process `pid`, in clock ticks since boot; None if there is no such process.

    It tells two processes apart that had the same pid, one after the other.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
