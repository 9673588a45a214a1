"""Trials of a store as trials to run again, from their recorded configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sweeps.expand import Trial
from trainer.config import validate
from trainer.errors import BadInput
from trainer.lease import PATTERN, attempts
from trainer.plan import plan_trial
from trainer.record import trial_folder

STAYS = ("config.json", "result.json", "trial_id", PATTERN, "earlier-*", ".*")
"""What is not moved, or last: the result."""


def recorded(folder: Path, arm: str, trial_id: str, results: Path) -> Trial:
    """The trial of a folder in the store `results`, wherever it was made.

    Raises BadInput if its config, on this data and by this trainer, is another trial.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        config |= {"results": str(results.absolute()), "out": None}
        config["data"]["path"] = str(Path(config["data"]["path"]).absolute())
        config = validate(config)
        plan = plan_trial(config)
    except (OSError, ValueError, LookupError) as error:
        raise BadInput("trial", trial_id, f"has a config that cannot run ({error})") from None
    if plan.trial_id != trial_id:
        allowed = f"was made on other data or by another trainer: now it would be {plan.trial_id}"
        raise BadInput("trial", trial_id, allowed)
    if trial_folder(config, trial_id) != folder.absolute():
        config["out"] = str(folder.absolute())
    return Trial(arm, config, plan)


class Aside:
    """What a finished trial made, moved to `earlier-<n>/` of its folder so that it runs again.

    The result goes last: until then the trial is finished, from then on nothing is in the way.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._num_attempts = folder, len(attempts(folder))
        self._place = folder / f"earlier-{1 + len([*folder.glob('earlier-*')]):06d}"
        self._place.mkdir()
        stays = {path for pattern in STAYS for path in folder.glob(pattern)}
        for path in {*folder.iterdir()} - stays:
            path.rename(self._place / path.name)
        (folder / "result.json").rename(self._place / "result.json")

    def restore_unless_begun(self) -> None:
        """Puts everything back if the trial was not tried again."""
        if len(attempts(self._folder)) == self._num_attempts:
            for path in sorted(self._place.iterdir(), key=lambda path: path.name == "result.json"):
                path.rename(self._folder / path.name)
            self._place.rmdir()
