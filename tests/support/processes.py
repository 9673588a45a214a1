"""Processes of this machine, as /proc shows them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NO_RIGHTS = "-dac_override,-dac_read_search"
"""Of root, to read what is another user's."""


def closed_to(folder: Path) -> list[str]:
    """Makes a folder another user's, and returns the words before a command that runs it as
    somebody who may not read that; skips the test where neither can be had."""
    if os.geteuid():
        folder.chmod(0)
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root reads everything, and setpriv is not here")
    folder.chmod(0o700)
    os.chown(folder, 65534, 65534)
    return ["setpriv", "--bounding-set", NO_RIGHTS, "--inh-caps", NO_RIGHTS]


def python(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python with these words to its end."""
    command = [sys.executable, *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


@contextmanager
def holding(code: str, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of Python that runs `code` until it is killed, and the first line that it prints:
    by then it holds what it is about."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


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
