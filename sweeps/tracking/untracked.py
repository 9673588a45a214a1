"""Says in the driver, once, that trials are not tracked as they should be."""

from __future__ import annotations

import sys
from typing import Any

from ray.tune import Callback

SHOWN = 3
"""Trials that are named at the end."""


class Untracked(Callback):
    """Warns of the first trial at once, and of how many there were at the end."""

    def __init__(self) -> None:
        self._troubled: set[str] = set()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """A row of a running trial, or its last one."""
        trouble = result.get("untracked")
        if trouble is None:
            return
        name = trial.config["trial"]["id"]
        if not self._troubled:
            _warn(f"{name}: {trouble} (the trials themselves are as without tracking)")
        self._troubled.add(name)

    def on_experiment_end(self, trials: list[Any], **_: object) -> None:
        """All trials ended."""
        if len(self._troubled) > 1:
            some = sorted(self._troubled)
            names = ", ".join(some[:SHOWN]) + (", …" if len(some) > SHOWN else "")
            _warn(f"{len(some)} of {len(trials)} trials are not wholly tracked: {names}")


def _warn(message: str) -> None:
    print(f"warning: tracking: {message}", file=sys.stderr, flush=True)
