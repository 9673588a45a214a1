"""The figures of a report. Each is a data function (its CSV) and a draw function."""

from importlib import import_module

from pipegap.analysis.figures.figure import Figure, Plot, panels, plot, save

MODULES = tuple(
    f"pipegap.analysis.figures.{name}" for name in ("dots", "taxes", "curves", "lines", "paper")
)
"""Modules that hold FIGURES, in the order of the report."""


FIGURES: tuple[Figure, ...] = tuple(
    figure for name in MODULES for figure in import_module(name).FIGURES
)
BY_NAME = {figure.name: figure for figure in FIGURES}

__all__ = ["BY_NAME", "FIGURES", "Figure", "Plot", "panels", "plot", "save"]
