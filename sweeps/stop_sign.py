"""What the trials of a driver look at to know whether to stop.

It lives in a process of its own, which starts sooner without torch and Tune.
"""

from __future__ import annotations

from typing import Any

import ray

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
