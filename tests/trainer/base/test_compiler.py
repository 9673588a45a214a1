"""A process that was killed while it compiled does not fail the next one."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipegap.trainer.base.cli import STOPS
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.base.scratch import compiling
from tests.support.processes import holding, python

GROUP = """
import os, signal, subprocess, sys
from types import SimpleNamespace
from pipegap.trainer.base.cli import stopping
from pipegap.trainer.base.scratch import compiling
said_by_torch = SimpleNamespace(cache_dir=lambda: os.environ["TORCHINDUCTOR_CACHE_DIR"])
sys.modules["torch._inductor.runtime.cache_dir_utils"] = said_by_torch
os.setpgid(0, 0)
signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # under nohup, SIGHUP is ignored from the start
with stopping("stops") as asked_to_stop, compiling():
    compiler = subprocess.Popen(["sh", "-c", "echo runs; read line; exit 7"], stdin=-1, stdout=-1)
    compiler.stdout.readline()
    os.killpg(0, int(sys.argv[1]))
    compiler.communicate(b"go on")
    print(compiler.returncode, asked_to_stop())
os.kill(os.getpid(), int(sys.argv[1]))
"""
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


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_for_the_whole_group_asks_and_lets_a_compiler_end(number: int) -> None:
    """After that it acts as usual."""
    done = python("-c", GROUP, str(int(number)))
    assert done.stdout == "7 True\n", done.stderr
    assert done.returncode == -number


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


@pytest.mark.parametrize(
    ("error", "cause", "kept"),
    [(Stopped(1), None, {"a.so"}), (Stopped(1), ValueError(), set()), (ValueError(), None, set())],
)
def test_a_process_that_stops_when_asked_leaves_whole_files(
    folder: Path, error: Exception, cause: Exception | None, kept: set[str]
) -> None:
    """Not one that stops since something failed."""

    def write() -> None:
        with compiling():
            (folder / "a.so").touch()
            raise error from cause

    with pytest.raises(type(error)):
        write()
    with compiling():
        assert names(folder) & {"a.so"} == kept
