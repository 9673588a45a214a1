"""What drivers see of each other's trials in a store: which have been started, which are free."""

from __future__ import annotations

import os
from enum import Enum, auto
from pathlib import Path

from sweeps.request.expand import Trial
from sweeps.store.results import finished
from trainer.base.errors import BadInput
from trainer.folder.lease import holder


class Look(Enum):
    """What a look into the folder of a started trial finds."""

    FREE = auto()
    """It has to run, and no process runs it."""
    HELD = auto()
    """A process runs it, or the store does not answer."""
    ENDED = auto()
    """It has a result that stays."""


class Folders:
    """The folders of trials, by id."""

    def __init__(self) -> None:
        self._trials: dict[str, Trial] = {}
        self._names: dict[Path, dict[str, str]] = {}
        """Store → name of a trial's folder in it → id."""

    def __getitem__(self, trial_id: str) -> Trial:
        return self._trials[trial_id]

    def add(self, trial: Trial) -> None:
        """Makes a trial known."""
        folder, trial_id = trial.folder, trial.plan.trial_id
        self._trials[trial_id] = trial
        self._names.setdefault(folder.parent, {})[folder.name] = trial_id

    def started(self) -> set[str]:
        """Ids of the known trials that any driver has started, whatever became of them."""
        return {
            names[name]
            for store, names in self._names.items()
            for name in _names(store)
            if name in names
        }

    def look(self, trial_id: str) -> Look:
        """What the folder of a trial says. It takes about ten operations of the file system."""
        trial = self._trials[trial_id]
        try:
            if finished(trial) is not None:
                return Look.ENDED
            return Look.FREE if holder(trial.folder) is None else Look.HELD
        except (OSError, BadInput):  # the store may be away for a moment
            return Look.HELD


def _names(store: Path) -> list[str]:
    try:
        return os.listdir(store)
    except OSError:
        return []
