"""Results → tidy table → paired gaps with uncertainty → figures and a report."""

from analysis.advice import advise
from analysis.statistics.best import best
from analysis.statistics.downstream import downstream
from analysis.statistics.gaps import gaps
from analysis.table.load import load

__all__ = ["advise", "best", "downstream", "gaps", "load"]
