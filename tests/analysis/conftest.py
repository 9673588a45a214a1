"""What tests of the analysis share."""

from __future__ import annotations

import pytest

from analysis.figures import BY_NAME
from analysis.report import contents


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report draws the main figure alone: for tests of its words and tables, in a third of the
    time."""
    monkeypatch.setattr(contents, "FIGURES", (BY_NAME["final_losses"],))
