"""A wrong word: exit code 2, one line on stderr, and nothing is left."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
