"""A process that was killed while it compiled does not fail the next one."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.base.scratch import compiling
from tests.support.processes import holding

MARKED = """
import os, sys, time
from types import SimpleNamespace
from pipegap.trainer.base.scratch import compiling
said_by_torch = SimpleNamespace(cache_dir=lambda: os.environ["TORCHINDUCTOR_CACHE_DIR"])
sys.modules["torch._inductor.runtime.cache_dir_utils"] = said_by_torch
with compiling():
    print("marked", flush=True)
    time.sleep(600)
"""
"""Without the compiler, whose import takes seconds."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process that compiles."""
    with holding(MARKED) as (process, _):
        yield process


def test_what_a_killed_process_wrote_in_place_is_deleted(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    for name in ("old.so", "new.so", "new.h.gch", "new.py"):
        (folder / name).touch()
    os.utime(folder / "old.so", (0, 0))
    before = names(folder)
    with compiling():
        assert names(folder) > before  # the other one lives
    other.send_signal(signal.SIGKILL)
    other.wait()
    with compiling():
        pass
    assert names(folder) == {"old.so", "new.py"}


@pytest.mark.parametrize(("error", "kept"), [(Stopped(1), {"a.so"}), (ValueError(), set())])
def test_a_process_that_stops_when_asked_leaves_whole_files(
    folder: Path, error: Exception, kept: set[str]
) -> None:
    def write() -> None:
        with compiling():
            (folder / "a.so").touch()
            raise error

    with pytest.raises(type(error)):
        write()
    with compiling():
        assert names(folder) & {"a.so"} == kept
