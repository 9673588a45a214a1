"""Processes of this machine, as /proc shows them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing


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


# A wrong word: exit code 2, one line on stderr, and nothing is left.

SECONDS = 2.0
"""Of CPU time, beside imports, until a wrong word is refused."""

Main = Callable[[], int]
Refused = Callable[[Main], str]
"""What the fixture `refused` is: `main` → the line that it refuses with."""


def name_of(words: str) -> str:
    """Of a test's case: pytest's own names of cases hold no odd characters."""
    return ascii(words)[1:40]


@pytest.fixture
def refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Refused:
    """Calls a main in an empty folder, of which no file may come or go."""
    monkeypatch.chdir(tmp_path)
    return lambda main: refusal(main, tmp_path, capsys)


def refusal(main: Main, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that `main` refuses with; no file of `folder` may have come or gone."""
    before = sorted(folder.rglob("*"))
    seconds = _seconds_of(main)
    if seconds > SECONDS:  # once is by chance, on a busy machine
        capsys.readouterr()
        seconds = _seconds_of(main)
    assert seconds < SECONDS
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1, printed.err
    assert printed.err.strip().isprintable()
    assert len(printed.err) < 1_000
    assert not printed.out
    assert sorted(folder.rglob("*")) == before
    return printed.err


def _seconds_of(main: Main) -> float:
    started = time.process_time()
    assert main() == 2
    return time.process_time() - started


def on_ranks(num: int, program: Callable[..., object], *arguments: object) -> None:
    """Runs a program on new ranks over gloo: forks of this process, which has imported for them."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    arguments = num, store.port, program, arguments
    torch.multiprocessing.start_processes(_as_rank, arguments, num, start_method="fork")


def _as_rank(
    rank: int, num: int, port: int, program: Callable[..., object], arguments: Sequence[object]
) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("localhost", port)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num)
    program(*arguments)
    dist.barrier()
    dist.destroy_process_group()
