"""Results → tidy pandas tables → gaps with their uncertainty → figures → report."""

from analysis.gaps import gaps
from analysis.load import load

__all__ = ["gaps", "load"]
