"""The public names of pipegap, each imported from its package when it is first used.

`from pipegap import DelayedOptimizer` needs no pandas, and `from pipegap import load` needs no
torch. The names are those of pipegap.trainer and pipegap.analysis, which say what each does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipegap.analysis import advise, gaps, load
    from pipegap.trainer import DelayedOptimizer, Schedule2BW, record, run_trial

__all__ = ["DelayedOptimizer", "Schedule2BW", "advise", "gaps", "load", "record", "run_trial"]

_HOMES = {
    "DelayedOptimizer": "pipegap.trainer",
    "Schedule2BW": "pipegap.trainer",
    "advise": "pipegap.analysis",
    "gaps": "pipegap.analysis",
    "load": "pipegap.analysis",
    "record": "pipegap.trainer",
    "run_trial": "pipegap.trainer",
}
"""Name → its package."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
