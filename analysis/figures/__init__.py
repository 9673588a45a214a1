"""The figures of a report. Each is a data function (its CSV) and a draw function."""

from functools import partial

from analysis.figures import (
    curves,
    diagnostics,
    final_loss,
    gap_by_coefficient,
    gap_by_key,
    gap_lines,
)
from analysis.figures.figure import Figure, save

FIGURES = (
    Figure("validation_curves", curves.data, curves.draw),
    Figure("final_losses", final_loss.data, final_loss.draw),
    Figure("gap_lines", gap_by_key.data, gap_lines.draw),
    Figure("gap_by_coefficient", gap_by_coefficient.data, gap_lines.draw),
    *(
        Figure(name, partial(diagnostics.data, name=name), partial(diagnostics.draw, name=name))
        for name in diagnostics.SHOWN
    ),
)

__all__ = ["FIGURES", "Figure", "save"]
