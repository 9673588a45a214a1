"""The figures of a report. Each is a data function (its CSV) and a draw function."""

from collections.abc import Iterable
from importlib import import_module

from analysis.figures.figure import Figure, Plot, panels, plot
from analysis.figures.files import save

MODULES = tuple(
    f"analysis.figures.{name}"
    for name in ("taxes", "dots", "curves", "lines", "diagnostics", "paper", "scores")
)
"""Modules that hold FIGURES, in the order of the report."""


def registered(modules: Iterable[str]) -> tuple[Figure, ...]:
    """The FIGURES of these modules."""
    return tuple(figure for name in modules for figure in import_module(name).FIGURES)


FIGURES = registered(MODULES)
BY_NAME = {figure.name: figure for figure in FIGURES}

__all__ = [
    "BY_NAME",
    "FIGURES",
    "MODULES",
    "Figure",
    "Plot",
    "panels",
    "plot",
    "registered",
    "save",
]
