"""Results → tidy table → paired gaps with uncertainty → figures and a report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.advice.advise import advise
    from analysis.statistics.best import best
    from analysis.statistics.downstream import downstream
    from analysis.statistics.gaps import gaps
    from analysis.table.load import load

__all__ = ["advise", "best", "downstream", "gaps", "load"]

WHERE = {
    "advise": "analysis.advice.advise",
    "best": "analysis.statistics.best",
    "downstream": "analysis.statistics.downstream",
    "gaps": "analysis.statistics.gaps",
    "load": "analysis.table.load",
}
"""Name → its module, which is imported when it is asked for: a trial that talks to a bucket needs
neither pandas nor scipy."""


def __getattr__(name: str) -> Any:
    if name in WHERE:
        return getattr(import_module(WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
