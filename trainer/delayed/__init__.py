"""The delayed update of a trial in a training loop of one's own: see docs/delayed.md."""

from trainer.delayed.optimizer import DelayedOptimizer
from trainer.delayed.recorder import record

__all__ = ["DelayedOptimizer", "record"]
