"""A store that is a folder which machines share, and whether its file system can hold a lease."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from pipegap.trainer.base.atomic import delete, partials
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import STALE_AFTER, Held, attempts, holder
from pipegap.trainer.folder.wellformed import RESULT, final, read_result, require_own, trial_folder
from pipegap.trainer.store.store import (
    ARCHIVED,
    Config,
    RunningTrial,
    Spare,
    Stored,
    TrialState,
    stays,
)

PROBE = ".probe-"


class FileStore:
    """A `SweepStore` in a folder. What is written in the folder is seen by all machines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.folder)

    def require_usable(self) -> None:
        """Raise BadInput unless this machine can write there, and files are made exclusively."""
        require_writable(self.folder)

    def driven(self) -> AbstractContextManager[None]:
        """Do nothing: drivers share a folder by the leases of its trials."""
        return nullcontext()

    def pull(self) -> None:
        """Do nothing."""

    def push(self, *paths: Path) -> None:
        """Do nothing."""

    def started(self, trials: Mapping[str, Stored]) -> set[str]:
        """Return the ids of the trials that have a folder here: no sweep sets their `out`."""
        return trials.keys() & _names(self.folder / "trials")

    def state_of(self, trial: Stored) -> TrialState:
        """Return what the trial's folder says. It takes about ten operations of the file system."""
        try:
            require_own(trial.folder, trial.trial_id)
            if final(read_result(trial.folder)) is not None:
                return TrialState.ENDED
            return TrialState.FREE if holder(trial.folder) is None else TrialState.HELD
        except (BadInput, PermissionError):  # or another user's, whom this one cannot wait for
            return TrialState.DAMAGED
        except OSError:  # the store may be away for a moment
            return TrialState.HELD

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[RunningTrial]:
        """Yield the trial. The trainer itself takes and keeps the lease of the trial's folder."""
        if holder(trial_folder(config, trial_id)) is not None:
            raise Held("trial", trial_id, "another process runs this trial")
        yield RunningTrial(config)

    def archive(self, trial: Stored) -> Callable[[], None]:
        """Move the output to `earlier-<n>/` in the trial's folder.

        The result moves last: until then the trial is finished, and after that nothing is left.
        """
        # The files of attempts stay, so that a new attempt has a number of its own.
        folder, num_attempts = trial.folder, len(attempts(trial.folder))
        archive = folder / f"{ARCHIVED}{1 + len([*folder.glob(f'{ARCHIVED}*')]):06d}"
        archive.mkdir()
        moved = [path for path in folder.iterdir() if not stays(path.name)]
        for path in sorted(moved, key=lambda path: path.name == RESULT):
            path.rename(archive / path.name)

        def restore() -> None:
            if len(attempts(folder)) == num_attempts:
                for path in sorted(archive.iterdir(), key=lambda path: path.name == RESULT):
                    path.rename(folder / path.name)
                archive.rmdir()

        return restore

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Yield the checkpoints and partial files of each folder that no process holds."""
        for folder in folders:
            files = [path for path in folder.glob("checkpoint-*.pt") if path.is_file()]
            files += partials(folder)
            # Listed before this look: a process that takes the trial now writes other files.
            if files and holder(folder) is None:
                num_bytes = sum(path.stat().st_size for path in files)
                yield Spare(len(files), num_bytes, partial(delete, files))

    @contextmanager
    def probe(self) -> Iterator[Callable[[], bool]]:
        """A machine that sees this folder fails to create a file in it that exists."""
        with probe(self.folder / "trials") as probe_file:
            yield partial(_sees, probe_file)


def _names(trials: Path) -> list[str]:
    try:
        return os.listdir(trials)
    except OSError:
        return []


def _sees(probe_file: Path) -> bool:
    try:
        return not creates(probe_file)
    except OSError:  # this machine has no such folder
        return False


def require_writable(results: Path) -> None:
    """Raise BadInput if `results` cannot be written, or its file system cannot hold a lease."""
    trials = results / "trials"
    try:
        trials.mkdir(parents=True, exist_ok=True)
        with probe(trials) as probe_file:
            exclusive = not creates(probe_file)
            _clean_old(trials, newest=probe_file)
    except OSError as error:
        allowed = f"must be a folder that can be written ({error.strerror})"
        raise BadInput("results", results, allowed) from None
    if not exclusive:
        allowed = "must be on a file system with exclusive creation: a file was created twice"
        raise BadInput("results", results, allowed)


@contextmanager
def probe(folder: Path) -> Iterator[Path]:
    """Yield a new file in `folder`, which is deleted afterwards."""
    path = folder / f"{PROBE}{uuid4().hex}"  # no other process has this name
    path.touch(exist_ok=False)
    try:
        yield path
    finally:
        path.unlink()


def creates(path: Path) -> bool:
    """Return whether exclusive creation of an existing file succeeds: that would break leases."""
    try:
        with path.open("xb"):
            return True
    except FileExistsError:
        return False


def _clean_old(trials: Path, newest: Path) -> None:
    """Delete probes, unless a living process may use them: each lives for less than a second.

    One is old if it is STALE_AFTER older than `newest`: the clock is that of the file system.
    """
    with suppress(OSError):  # another driver cleans too
        newest_time = newest.stat().st_mtime
        for old_probe in trials.glob(f"{PROBE}*"):
            if old_probe.stat().st_mtime < newest_time - STALE_AFTER:
                old_probe.unlink(missing_ok=True)
