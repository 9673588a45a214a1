"""One trial: a pipeline-parallel training run with an exact, counted gradient delay."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ == "trainer":  # found beside the package, in a checkout
    raise ImportError("pipegap: its packages have one name: import pipegap.trainer")

if TYPE_CHECKING:
    from pipegap.trainer.base.errors import BadInput, Stopped
    from pipegap.trainer.config.compose import compose
    from pipegap.trainer.config.plan import plan_trial
    from pipegap.trainer.delayed import DelayedOptimizer, record
    from pipegap.trainer.torch_pipelining import Schedule2BW
    from pipegap.trainer.trial import run_trial

__all__ = ["BadInput", "DelayedOptimizer", "Schedule2BW", "Stopped"]
__all__ += ["compose", "plan_trial", "record", "run_trial"]

_HOMES = {
    "BadInput": "pipegap.trainer.base.errors",
    "DelayedOptimizer": "pipegap.trainer.delayed",
    "Schedule2BW": "pipegap.trainer.torch_pipelining",
    "Stopped": "pipegap.trainer.base.errors",
    "compose": "pipegap.trainer.config.compose",
    "plan_trial": "pipegap.trainer.config.plan",
    "record": "pipegap.trainer.delayed",
    "run_trial": "pipegap.trainer.trial",
}
"""Name → its module, imported at the first use of the name: a reader of results needs no torch."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
