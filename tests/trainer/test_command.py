"""What `python -m trainer` says of a trial."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import small
from trainer.__main__ import main


def test_a_finished_trial_does_not_look_as_if_it_had_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trainer", *small.overrides(tmp_path, "num_updates=2")])
    assert main() == 0
    ran = capsys.readouterr().out
    assert ran.startswith("completed trial ")
    assert main() == 0
    assert capsys.readouterr().out == f"done before, not run: {ran}"
