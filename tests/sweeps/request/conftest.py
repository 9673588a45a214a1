"""Requests are read, and refused or planned; none is run."""

import pytest

from pipegap.sweeps.commands import run


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accepted by mistake fails at once, and not after minutes of training."""
    monkeypatch.setattr(run, "run_rounds", None)
