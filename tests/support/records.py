"""The least that a result and the state of a checkpoint hold."""

import json
from pathlib import Path
from typing import Any

from pipegap.trainer.folder.result import Row


def finished(**keys: Any) -> Row:
    """The result of a completed trial."""
    return {
        "trial_id": "a",
        "status": "completed",
        "final_val_loss": 1.0,
        "num_updates": 12,
        "wall_seconds": 1.0,
        "delays": [0],
        **keys,
    }


def state(num_updates: int, trial_id: str = "a", **keys: Any) -> Row:
    """The state after `num_updates` of a trial without weights."""
    return {
        "trial_id": trial_id,
        "num_updates": num_updates,
        "config": {},
        "executor": {},
        "random": {},
        "delays": [0],
        "val_loss": 1.0,
        "train_seconds": 1.0,
        **keys,
    }


def leave_finished(folder: Path, config: dict[str, Any], **result: Any) -> None:
    """Leaves the files of a trial that finished after 1,000 tokens, if `result` does not say."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({**finished(tokens=1000), **result}))


def leave_loss(folder: Path, loss: float | None) -> None:
    """Leaves the result of a trial that ended with this final loss; None: it diverged."""
    folder.mkdir(parents=True, exist_ok=True)
    status = "completed" if loss is not None else "diverged"
    (folder / "result.json").write_text(json.dumps(finished(status=status, final_val_loss=loss)))
