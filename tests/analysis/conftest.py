"""What tests of the analysis share."""

from __future__ import annotations

import pytest

from analysis.figures import BY_NAME
from analysis.report import contents

SHOWN = ("final_losses", "validation_curves", "fig03_curves")


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report draws a few figures alone: enough for tests of its words and tables, in less than
    half the time."""
    monkeypatch.setattr(contents, "FIGURES", [BY_NAME[name] for name in SHOWN])
