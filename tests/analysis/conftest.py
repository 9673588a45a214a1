"""What tests of the analysis share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.figures import BY_NAME, Plot
from analysis.report import contents

SHOWN = ("final_losses", "validation_curves", "fig03_curves")


@pytest.fixture(scope="module")
def few_figures() -> Iterator[None]:
    """A report has a few figures alone, and pictures of them on its page only: enough for tests of
    its words and tables, in a third of the time."""

    def save(plot: Plot, out: Path) -> None:
        plot.data.to_csv(out / f"{plot.figure.name}.csv", index=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "FIGURES", [BY_NAME[name] for name in SHOWN])
        patch.setattr(contents, "save", save)
        yield
