"""Warns in the driver that trials are not tracked completely."""

from __future__ import annotations

import sys
from typing import Any

from ray.tune import Callback

SHOWN = 3
"""How many trials the warning at the end names."""


class Untracked(Callback):
    """Warns of the first such trial at once, and of their number at the end."""

    def __init__(self) -> None:
        self._troubled: set[str] = set()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: object
    ) -> None:
        """Called by Tune for every row of a trial."""
        trouble = result.get("untracked")
        if trouble is None:
            return
        name = trial.config["trial"]["id"]
        if not self._troubled:
            _warn(f"{name}: {trouble} (this does not affect the trials)")
        self._troubled.add(name)

    def on_experiment_end(self, trials: list[Any], **_: object) -> None:
        """Called by Tune when all trials have ended."""
        if len(self._troubled) > 1:
            some = sorted(self._troubled)
            names = ", ".join(some[:SHOWN]) + (", …" if len(some) > SHOWN else "")
            _warn(f"{len(some)} of {len(trials)} trials are not tracked completely: {names}")


def _warn(message: str) -> None:
    print(f"warning: tracking: {message}", file=sys.stderr, flush=True)
