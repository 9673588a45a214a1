"""The public names of pipegap, each imported from its module when it is first used.

`from pipegap import DelayedOptimizer` needs no pandas, and `from pipegap import load` needs no
torch. What is there says what it does.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipegap.analysis import advise, gaps, load
    from pipegap.trainer.delayed import DelayedOptimizer, record
    from pipegap.trainer.megatron.schedule import Megatron2BW
    from pipegap.trainer.torch_pipelining import Schedule2BW
    from pipegap.trainer.trial import run_trial

__all__ = [
    "DelayedOptimizer",
    "Megatron2BW",
    "Schedule2BW",
    "advise",
    "gaps",
    "load",
    "record",
    "run_trial",
]

_HOMES = {
    "DelayedOptimizer": "pipegap.trainer.delayed",
    "Megatron2BW": "pipegap.trainer.megatron.schedule",
    "Schedule2BW": "pipegap.trainer.torch_pipelining",
    "advise": "pipegap.analysis",
    "gaps": "pipegap.analysis",
    "load": "pipegap.analysis",
    "record": "pipegap.trainer.delayed",
    "run_trial": "pipegap.trainer.trial",
}
"""Name → its module."""
_EXTRAS = {"megatron": "megatron", "megatron.core": "megatron"}
"""Module that is missing → the extra that installs it."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        try:
            return getattr(import_module(_HOMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name in _EXTRAS:
                error.add_note(f"{name} needs it: pip install 'pipegap[{_EXTRAS[error.name]}]'")
            raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
