"""The public names of pipegap, each imported from its package when it is first used.

`from pipegap import DelayedOptimizer` needs no pandas, and `from pipegap import load` needs no
torch. The names are those of the packages trainer and analysis, which say what each does.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis import advise, gaps, load
    from trainer import DelayedOptimizer, Schedule2BW, record, run_trial

__all__ = ["DelayedOptimizer", "Schedule2BW", "advise", "gaps", "load", "record", "run_trial"]

_HOMES = {
    "DelayedOptimizer": "trainer",
    "Schedule2BW": "trainer",
    "advise": "analysis",
    "gaps": "analysis",
    "load": "analysis",
    "record": "trainer",
    "run_trial": "trainer",
}
"""Name → its package."""
IN_THE_WAY = "pipegap: another package is named trainer: uninstall it"
"""PyPI has a package of the name of ours."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = _imported(_HOMES[name])
    if name not in getattr(package, "__all__", ()):
        raise ImportError(f"{IN_THE_WAY} ({package.__file__})")
    return getattr(package, name)


def _imported(package: str) -> ModuleType:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("trainer"):
            raise ImportError(f"{IN_THE_WAY} ({error})") from error
        raise
