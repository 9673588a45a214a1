"""What a store says of trials at one moment."""

import math
import warnings
from pathlib import Path
from typing import NamedTuple

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder.result import RESULT, Row, final, read_result
from pipegap.trainer.folder.wellformed import require_own
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

    def again(self) -> "Snapshot":
        """Return the snapshot of now. It opens those files alone that have changed since."""
        now = Snapshot()
        now._before = {**self._before, **self._read}
        return now

    def result(self, folder: Path) -> Row | None:
        """Return the result in a trial's folder, that of a failed trial too; None as
        `read_result`."""
        if folder not in self._read:
            stamp, known = _stamp(folder / RESULT), self._before.get(folder)
            if known is None or known.stamp != stamp:
                known = _Read(stamp, read_result(folder) if stamp else None)
            self._read[folder] = known
        return self._read[folder].row

    def finished(self, trial: Stored) -> Row | None:
        """Return the result of a trial; None if it has to run: it has not finished, or failed.

        Warns if it cannot run, because its folder is damaged or another trial's.
        """
        key = trial.folder, trial.trial_id
        if key not in self._finished:
            result = final(self.result(trial.folder))
            try:
                require_own(*key)
                self._finished[key] = result
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
        seen = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return seen.st_mtime_ns, seen.st_size
