"""One trial: a pipeline-parallel training run with an exact, counted gradient delay."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.base.errors import BadInput, Stopped
    from trainer.config.compose import compose
    from trainer.config.plan import plan_trial
    from trainer.delayed import DelayedOptimizer, record
    from trainer.torch_pipelining import Schedule2BW
    from trainer.trial import run_trial

__all__ = ["BadInput", "DelayedOptimizer", "Schedule2BW", "Stopped"]
__all__ += ["compose", "plan_trial", "record", "run_trial"]

_HOMES = {
    "BadInput": "trainer.base.errors",
    "DelayedOptimizer": "trainer.delayed",
    "Schedule2BW": "trainer.torch_pipelining",
    "Stopped": "trainer.base.errors",
    "compose": "trainer.config.compose",
    "plan_trial": "trainer.config.plan",
    "record": "trainer.delayed",
    "run_trial": "trainer.trial",
}
"""Name → its module, imported at the first use of the name: a reader of results needs no torch."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
