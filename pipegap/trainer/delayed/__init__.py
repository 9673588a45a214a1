"""The delayed update of a trial in a training loop of one's own: see docs/delayed.md."""

from pipegap.trainer.delayed.optimizer import DelayedOptimizer
from pipegap.trainer.delayed.recorder import record

__all__ = ["DelayedOptimizer", "record"]
