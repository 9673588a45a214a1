"""What a trial's folder says of it: whose folder it is, and how the trial ended. Without torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import Damaged, recorded_id

Row = dict[str, Any]
RESULT = "result.json"


def trial_folder(config: Mapping[str, Any], trial_id: str) -> Path:
    """The folder of a trial: `out` of its config, or its place in the store."""
    return Path(config["out"] or f"{config['results']}/trials/{trial_id}")


def require_own(folder: Path, trial_id: str) -> None:
    """Raises BadInput if the folder is another trial's."""
    held = recorded_id(folder)
    if held not in (None, trial_id):
        allowed = f"holds trial {held}, not {trial_id}: choose an empty folder"
        raise BadInput("out", folder, allowed)


def read_result(folder: Path) -> Row | None:
    """The content of result.json; None if there is none, or it is damaged: the trial runs again."""
    try:
        return wellformed.read(folder / RESULT, wellformed.RESULT)
    except (FileNotFoundError, NotADirectoryError, Damaged):
        return None


def final(result: Row | None) -> Row | None:
    """The result of a trial that does not run again; None if it has none yet, or failed."""
    return None if result is None or result["status"] == Status.FAILED else result
