"""The flag by which a driver asks its trials to stop.

It is a Ray actor. Its process starts sooner because this module imports neither torch nor Tune.
"""

from typing import Any

import ray

ANSWER_WITHIN = 2.0
"""Seconds that a trial waits for the flag's answer."""


class StopFlag:
    """A flag that one process sets and others read."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Asks all trials to stop."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether the trials are asked to stop."""
        return self._is_set


def stop_requested(flag: Any) -> bool:
    """Whether a trial shall stop: the flag is set, or its driver died, and the actor with it.

    False if there is no answer now: a busy machine may not have started the actor, or its process
    was killed and Ray starts another one.
    """
    try:
        return bool(ray.get(flag.is_set.remote(), timeout=ANSWER_WITHIN))
    except ray.exceptions.ActorDiedError:  # for good: it restarts as long as its driver lives
        return True
    except ray.exceptions.RayError:
        return False
