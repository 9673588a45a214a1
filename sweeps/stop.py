"""Brings a wish to stop from the driver to its trials, and ends Tune's run once they have saved."""

from __future__ import annotations

import time
from typing import Any, Protocol

import ray
from ray.tune import Stopper

from trainer.training import STOP_WITHIN
from trainer.watch import AskedToStop

GRACE = 2 * STOP_WITHIN
"""Seconds that running trials have to save a checkpoint. Slurm and Kubernetes give 30."""

ANSWER_WITHIN = 2.0
"""Seconds that a trial waits to hear whether it shall stop."""


class StopSign:
    """What every trial of a driver looks at."""

    def __init__(self) -> None:
        self._shown = False

    def show(self) -> None:
        """Asks all to stop."""
        self._shown = True

    def is_shown(self) -> bool:
        """Whether they are asked to."""
        return self._shown


def asks(sign: Any) -> bool:
    """Whether a trial shall stop: the sign is shown, or died with its driver.

    A trial does not wait for a sign that a busy machine has not started yet: it asks again.
    """
    try:
        return bool(ray.get(sign.is_shown.remote(), timeout=ANSWER_WITHIN))
    except ray.exceptions.GetTimeoutError:
        return False
    except ray.exceptions.RayError:
        return True


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
