"""Brings a wish to stop from the driver to its trials, and ends Tune's run once they have saved."""

from __future__ import annotations

import time
from typing import Any, Protocol

import ray
from ray.tune import Stopper

from sweeps.stop_sign import StopSign
from trainer.training import STOP_WITHIN
from trainer.watch import AskedToStop

GRACE = 2 * STOP_WITHIN
"""Seconds that running trials have to save a checkpoint. Slurm and Kubernetes give 30."""


class Running(Protocol):
    """Who knows which trials run."""

    running: set[str]


class StopWhenAsked(Stopper):
    """Ends Tune's run when asked to, once the trials that run then have ended or GRACE is over."""

    def __init__(self, asked_to_stop: AskedToStop, display: Running) -> None:
        sign: Any = ray.remote(StopSign)
        self.sign = sign.options(num_cpus=0).remote()
        self._asked_to_stop, self._display = asked_to_stop, display
        self._deadline: float | None = None
        self._waits_for: set[str] = set()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No trial alone."""
        return False

    def stop_all(self) -> bool:
        """Asked by Tune again and again."""
        if self._deadline is None:
            if not self._asked_to_stop():
                return False
            self.sign.show.remote()
            self._deadline = time.monotonic() + GRACE
            self._waits_for = set(self._display.running)
        left = self._waits_for & self._display.running
        return not left or time.monotonic() > self._deadline
