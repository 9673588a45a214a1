"""The figures of a report. Each is a data function (its CSV) and a draw function."""

from analysis.figures.figure import Figure, panels, save
from analysis.figures.general import GENERAL
from analysis.figures.paper import PAPER

FIGURES: tuple[Figure, ...] = (*GENERAL, *PAPER)

__all__ = ["FIGURES", "Figure", "panels", "save"]
