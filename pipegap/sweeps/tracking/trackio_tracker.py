"""Tracks a trial by trackio's local store, an SQLite database."""

import os
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from annotated_types import MinLen

from pipegap.sweeps.tracking.tracker import About, numbers, summary
from pipegap.trainer.folder.wellformed import Row

WRITE_EVERY = 1.0
"""Seconds between two transactions: each takes the lock of the database, which trials share."""


class TrackioTracker:
    """One run per trial, whose id is the trial's; the step is `update`.

    Rows that an attempt repeats after a checkpoint have the ids of the earlier ones, and are
    dropped. This writes as trackio's own runs do, without what these do beside it: they ask the
    network who uses it, print, and end with the process.
    """

    def __init__(self, about: About, *, project: Annotated[str, MinLen(1)], dir: str) -> None:
        folder = (about.store / dir).absolute()
        os.environ["TRACKIO_DIR"] = str(folder)  # read once, at the import
        from trackio.sqlite_storage import TRACKIO_DIR, SQLiteStorage

        if folder != TRACKIO_DIR:
            raise RuntimeError(f"trackio writes to {TRACKIO_DIR} in this process, not to {folder}")
        SQLiteStorage.validate_project_name(project)
        self._storage, self._project, self._about = SQLiteStorage, project, about
        metadata = {"_Created": datetime.now(UTC).isoformat(), "_Group": about.sweeps[0]}
        choice = {**about.choices, "arm": about.arm, "sweeps": list(about.sweeps)}
        self._config: Row = {**about.config, "choice": choice, **metadata}
        self._rows: list[Row] = []
        self._next_time = 0.0

    @staticmethod
    def note(store: Path, keys: Mapping[str, Any]) -> str:
        """How the runs are looked at."""
        folder = shlex.quote(str(store / keys["dir"]))
        return f"`TRACKIO_DIR={folder} trackio show --project {keys['project']}` shows the runs"

    def log(self, row: Row) -> None:
        """See `Tracker`."""
        self._rows.append(row)
        if monotonic() >= self._next_time:
            self._write()

    def _write(self) -> None:
        self._next_time = monotonic() + WRITE_EVERY
        rows_shown = [dict(numbers(row)) for row in self._rows]
        steps = [row["update"] for row in self._rows]
        trial_id = self._about.trial_id
        self._storage.bulk_log(
            self._project,
            self._about.name,
            rows_shown,
            steps,
            config=self._config,
            log_ids=[f"{trial_id}-{step}" for step in steps],
            run_id=trial_id,
        )
        del self._rows[:-1]  # trackio takes no config without a row

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""
        self._config["result"] = summary(outcome)
        self._write()
