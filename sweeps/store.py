"""What the store already holds of a sweep's trials."""

from __future__ import annotations

import math
import os
from pathlib import Path

from sweeps.expand import Trial
from trainer.errors import BadInput
from trainer.lease import holder
from trainer.record import Row, TrialFolder


def finished(trial: Trial) -> Row | None:
    """The trial's result; None if it is unfinished or failed, and so has to run."""
    return TrialFolder(trial.folder, trial.plan.trial_id).result()


def loss(trial: Trial) -> float | None:
    """Final validation loss: infinite if it diverged, None where it has to run."""
    result = finished(trial)
    if result is None:
        return None
    found: float | None = result["final_val_loss"]
    return math.inf if found is None else found


def failed(trial: Trial) -> bool:
    """Whether the trial ran and failed."""
    return finished(trial) is None and (trial.folder / "result.json").exists()


def held(trial: Trial) -> bool:
    """Whether a process runs the trial now, here or elsewhere."""
    return finished(trial) is None and holder(trial.folder) is not None


def require_writable(results: Path) -> None:
    """Raises BadInput for a results folder that cannot be written."""
    try:
        (results / "trials").mkdir(parents=True, exist_ok=True)
        writable = os.access(results / "trials", os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise BadInput("results", results, "must be a folder that can be written")
