"""A wrong word: exit code 2, one line on stderr, and nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

SECONDS = 2.0
"""Of CPU time, beside imports, until a wrong word is refused."""


def refusal(main: Callable[[], int], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that `main` refuses with; no file of `folder` may have come or gone."""
    before, started = sorted(folder.rglob("*")), time.process_time()
    assert main() == 2
    assert time.process_time() - started < SECONDS
    said = capsys.readouterr()
    assert said.err.count("\n") == 1, said.err
    assert said.err.strip().isprintable()
    assert len(said.err) < 1_000
    assert not said.out
    assert sorted(folder.rglob("*")) == before
    return said.err
