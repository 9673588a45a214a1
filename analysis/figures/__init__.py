"""The figures of a report. Each is a data function (its CSV) and a draw function, in one file."""

from analysis.figures import curves, final_loss
from analysis.figures.figure import Figure, save

FIGURES = (
    Figure("validation_curves", curves.data, curves.draw),
    Figure("final_losses", final_loss.data, final_loss.draw),
)

__all__ = ["FIGURES", "Figure", "save"]
