"""The figures of a report. Each is a data function (its CSV) and a draw function."""

from analysis.figures import curves
from analysis.figures.figure import Figure, panels, save

FIGURES = (
    Figure(
        name="validation_curves",
        title="Validation loss over training",
        data=curves.data,
        charts=curves.charts,
        caption=curves.CAPTION,
    ),
)

__all__ = ["FIGURES", "Figure", "panels", "save"]
