"""What the store already holds of a sweep's trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

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
    """Raises BadInput for a results folder that cannot be written, or that cannot hold a lease."""
    trials = results / "trials"
    try:
        trials.mkdir(parents=True, exist_ok=True)
        with probe(trials) as made:
            exclusive = not creates(made)
    except OSError as error:
        allowed = f"must be a folder that can be written ({error.strerror})"
        raise BadInput("results", results, allowed) from None
    if not exclusive:
        allowed = "must be on a file system that creates a file once: two processes both made one"
        raise BadInput("results", results, allowed)


@contextmanager
def probe(folder: Path) -> Iterator[Path]:
    """A file that was not there before."""
    path = folder / f".probe-{uuid4().hex}"
    path.touch(exist_ok=False)
    try:
        yield path
    finally:
        path.unlink()


def creates(path: Path) -> bool:
    """Whether this process can make the file, as an attempt at a trial is made: it must not be."""
    try:
        with path.open("x"):
            return True
    except FileExistsError:
        return False
