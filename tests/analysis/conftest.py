"""What tests of the analysis share."""

from __future__ import annotations

import pytest

from analysis.figures import BY_NAME
from analysis.report import contents

SHOWN = ("final_losses", "fig03_curves")


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report draws the main figure and one of a sweep: enough for tests of its words and tables,
    in a third of the time."""
    monkeypatch.setattr(contents, "FIGURES", [BY_NAME[name] for name in SHOWN])
