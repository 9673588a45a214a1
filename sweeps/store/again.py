"""Trials of a store as trials to run again, from their recorded configs."""

from __future__ import annotations

from pathlib import Path

from sweeps.request.expand import Trial, placed
from trainer.base.errors import BadInput
from trainer.config.plan import plan_trial
from trainer.config.schema import validate
from trainer.folder.lease import PATTERN, attempts
from trainer.folder.record import trial_folder
from trainer.folder.wellformed import CONFIG, read

RERUN = "rerun"
"""What trackers call the sweep of trials that run again."""
STAYS = ("config.json", "result.json", "trial_id", PATTERN, "earlier-*", ".*")
"""Patterns of files that are not moved, or, of the result, moved last."""


def recorded(folder: Path, arm: str, trial_id: str, results: Path) -> Trial:
    """The trial recorded in a folder of the store `results`, on whatever machine it was made.

    Raises BadInput if on this data and with this trainer its config has another id.
    """
    try:
        config = read(folder / "config.json", CONFIG)
        config = validate(placed({**config, "out": None}, results))
        plan = plan_trial(config)
    except (OSError, ValueError, LookupError) as error:
        raise BadInput("trial", trial_id, f"has a config that cannot run ({error})") from None
    if plan.trial_id != trial_id:
        allowed = f"was made on other data or by another trainer: now it would be {plan.trial_id}"
        raise BadInput("trial", trial_id, allowed)
    if trial_folder(config, trial_id) != folder.absolute():
        config["out"] = str(folder.absolute())
    return Trial(arm, config, plan, sweeps=(RERUN,))


class ArchivedOutput:
    """The output of a finished trial, moved to `earlier-<n>/` so that the trial can run again.

    The result is moved last: until then the trial is finished, and after that nothing is left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._num_attempts = folder, len(attempts(folder))
        self._archive = folder / f"earlier-{1 + len([*folder.glob('earlier-*')]):06d}"
        self._archive.mkdir()
        stays = {path for pattern in STAYS for path in folder.glob(pattern)}
        for path in {*folder.iterdir()} - stays:
            path.rename(self._archive / path.name)
        (folder / "result.json").rename(self._archive / "result.json")

    def restore_unless_started(self) -> None:
        """Moves everything back if no new attempt at the trial was made."""
        if len(attempts(self._folder)) == self._num_attempts:
            for path in sorted(
                self._archive.iterdir(), key=lambda path: path.name == "result.json"
            ):
                path.rename(self._folder / path.name)
            self._archive.rmdir()
