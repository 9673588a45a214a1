"""Reports in less time: with some of the figures, and without pictures that no test looks at."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipegap.analysis.figures import FIGURES, Plot
from pipegap.analysis.figures.figure import whole
from pipegap.analysis.figures.files import picture
from pipegap.analysis.report import contents
from pipegap.trainer.base.children import Worker

ALL = frozenset(figure.name for figure in FIGURES)
FEW = ("final_losses", "validation_curves", "fig03_curves")


def as_csv(plot: Plot, out: Path) -> None:
    """Of the files of a figure its data alone: the page has a picture all the same."""
    plot.data.to_csv(out / f"{plot.figure.name}.csv", index=False)


def as_svg(plot: Plot, out: Path) -> None:
    """The picture is drawn, and not converted to every kind of file."""
    as_csv(plot, out)
    (out / f"{plot.figure.name}.svg").write_text(picture(whole(plot)))


@contextmanager
def with_figures(
    names: Collection[str] = ALL, save: Callable[[Plot, Path], None] = as_csv
) -> Iterator[None]:
    """Reports that this process makes have the figures of these `names`, in files that `save`
    writes."""

    def save_at_once(plot: Plot, out: Path, _: Worker) -> None:
        save(plot, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "FIGURES", [one for one in FIGURES if one.name in names])
        patch.setattr(contents, "save", save_at_once)
        yield
