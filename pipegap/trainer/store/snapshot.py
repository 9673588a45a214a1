"""What a store says of trials at one moment."""

import math
import warnings
from pathlib import Path
from typing import NamedTuple

from pipegap.trainer.base.errors import OPENED_BY, BadInput, Status
from pipegap.trainer.folder import wellformed
from pipegap.trainer.folder.wellformed import RESULT, Damaged, Row
from pipegap.trainer.store.store import Stored


class _Read(NamedTuple):
    """A result, and what changes when its file does: time and size, None of a file that is not."""

    stamp: tuple[int, int] | None
    row: Row | None


class Snapshot:
    """The results of trials. Each is read when it is first asked for, and stays as it was then.

    Whoever plans, prices, records and reports a sweep by one snapshot agrees on what is done, and a
    file is opened once. `again` is how the store is seen later.
    """

    def __init__(self) -> None:
        self._read: dict[Path, _Read] = {}
        self._before: dict[Path, _Read] = {}
        self._finished: dict[tuple[Path, str], Row | None] = {}
        self._closed: dict[Path, Damaged] = {}

    def again(self) -> "Snapshot":
        """Return the snapshot of now. It opens those files alone that have changed since."""
        snapshot = Snapshot()
        snapshot._before = {**self._before, **self._read}
        return snapshot

    def result(self, folder: Path) -> Row | None:
        """Return the result in a trial's folder, that of a failed trial too; None as
        `read_result`, and where this user may not read: see `closed`."""
        if folder not in self._read:
            try:
                stamp, last = _stamp(folder / RESULT), self._before.get(folder)
                # Results are renamed into place: another content has another time or size.
                if last is None or last.stamp != stamp:
                    last = _Read(stamp, wellformed.read_result(folder) if stamp else None)
            except PermissionError as error:
                self._closed[folder], last = wellformed.damage(folder, error), _Read(None, None)
            self._read[folder] = last
        return self._read[folder].row

    @property
    def closed(self) -> str:
        """The line on the trials that were asked for and that this user may not read; empty if
        there are none."""
        if not self._closed:
            return ""
        return f"not counted: {wellformed.said([*self._closed.values()])}: {OPENED_BY}"

    def finished(self, trial: Stored) -> Row | None:
        """Return the result of a trial; None if it has to run: it has not finished, or failed.

        Warns if it cannot run, because its folder is damaged or another trial's.
        """
        key = trial.folder, trial.trial_id
        if key not in self._finished:
            result = wellformed.final(self.result(trial.folder))
            try:
                wellformed.require_own(*key)
                self._finished[key] = result
            except PermissionError:
                self._finished[key] = None
            except BadInput as error:
                warnings.warn(f"trial {trial.trial_id} cannot run: {error}", stacklevel=1)
                self._finished[key] = None
        return self._finished[key]

    def failure(self, trial: Stored) -> Row | None:
        """Return the result of a trial that ran and failed; None of any other."""
        result = self.result(trial.folder)
        return result if result is not None and result["status"] == Status.FAILED else None

    def final_loss(self, trial: Stored) -> float | None:
        """Return the final validation loss: infinite if it diverged, None if it has to run."""
        result = self.finished(trial)
        if result is None:
            return None
        loss: float | None = result["final_val_loss"]
        return math.inf if loss is None else loss


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_mtime_ns, status.st_size
