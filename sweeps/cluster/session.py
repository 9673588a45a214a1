"""What the trials of a driver run with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pipegap.sweeps.tracking.choice import Tracking
from pipegap.trainer.store.store import SweepStore


@dataclass(frozen=True)
class Session:
    """What trials of a store run with. `gpus_per_trial` and `tracking` are those of a request."""

    title: str
    """What people see of it."""
    store: SweepStore
    gpus_per_trial: float
    tracking: Tracking
    folder: Path
    """For temporary files."""
    asked_to_stop: Callable[[], bool]
