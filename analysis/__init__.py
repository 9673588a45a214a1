"""Results → tidy table → paired gaps with uncertainty → figures and a report."""

from analysis.advice import advise
from analysis.best import best
from analysis.paired import gaps
from analysis.store import load

__all__ = ["advise", "best", "gaps", "load"]
