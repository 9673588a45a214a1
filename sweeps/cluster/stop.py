"""Asks the trials of a driver to stop, and ends Tune's run once they have saved checkpoints."""

from __future__ import annotations

import time
from typing import Any, Protocol

import ray
from ray.tune import Stopper

from sweeps.cluster.stop_flag import StopFlag
from trainer.ranks.supervisor import AskedToStop
from trainer.training import STOP_WITHIN

GRACE = 2 * STOP_WITHIN
"""Seconds that running trials have to save a checkpoint. Slurm and Kubernetes give 30."""


class Running(Protocol):
    """Knows the ids of the trials that run now."""

    running: set[str]


class StopWhenAsked(Stopper):
    """Ends Tune's run when asked to, as soon as running trials have ended or GRACE is over."""

    def __init__(self, asked_to_stop: AskedToStop, display: Running) -> None:
        flag: Any = ray.remote(StopFlag)
        self.flag = flag.options(num_cpus=0, max_restarts=-1).remote()
        self._asked_to_stop, self._display = asked_to_stop, display
        self._deadline: float | None = None
        self._waits_for: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Stops no single trial."""
        return False

    def stop_all(self) -> bool:
        """Whether Tune's run shall end; Tune calls this again and again."""
        if self._deadline is None:
            if not self._asked_to_stop():
                return False
            self._deadline = time.monotonic() + GRACE
            self._waits_for = set(self._display.running)
        self.flag.set.remote()  # again and again: the actor may have been restarted
        left = self._waits_for & self._display.running
        return not left or time.monotonic() > self._deadline
