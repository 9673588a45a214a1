"""The store that a word of a command names: a folder that machines share, or an object store."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from sweeps.request.expand import Trial
from sweeps.store.objects import ObjectStore
from sweeps.store.results import creates, probe, require_writable
from sweeps.store.store import STAYS, Config, RunningTrial, Spare, SweepStore, TrialState
from trainer.base.atomic import partials
from trainer.base.errors import BadInput
from trainer.base.places import is_url, require_folder
from trainer.folder.lease import Held, attempts, holder
from trainer.folder.record import TrialFolder, trial_folder


def open_store(word: str) -> SweepStore:
    """Return the store `word`, a folder or the URL of an object store; raises BadInput.

    Asks nothing of the store yet.
    """
    if is_url(word):
        return ObjectStore(word)
    require_folder("results", word)
    return FileStore(Path(word))


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

    def started(self, trials: Mapping[str, Trial]) -> set[str]:
        """Return the ids of the trials that have a folder here: no sweep sets their `out`."""
        return trials.keys() & _names(self.folder / "trials")

    def look(self, trial: Trial) -> TrialState:
        """Return what the trial's folder says. It takes about ten operations of the file system."""
        try:
            if TrialFolder(trial.folder, trial.plan.trial_id).result() is not None:
                return TrialState.ENDED
            return TrialState.FREE if holder(trial.folder) is None else TrialState.HELD
        except BadInput:
            return TrialState.DAMAGED
        except OSError:  # the store may be away for a moment
            return TrialState.HELD

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[RunningTrial]:
        """Yield the trial. The trainer itself takes and keeps the lease of the trial's folder."""
        if holder(trial_folder(config, trial_id)) is not None:
            raise Held("trial", trial_id, "another process runs this trial")
        yield RunningTrial(config)

    def archive(self, trial: Trial) -> Callable[[], None]:
        """Move the output to `earlier-<n>/` in the trial's folder.

        The result moves last: until then the trial is finished, and after that nothing is left.
        """
        folder, num_attempts = trial.folder, len(attempts(trial.folder))
        archive = folder / f"earlier-{1 + len([*folder.glob('earlier-*')]):06d}"
        archive.mkdir()
        stays = {path for pattern in STAYS for path in folder.glob(pattern)}
        for path in [*({*folder.iterdir()} - stays), folder / "result.json"]:
            path.rename(archive / path.name)

        def restore() -> None:
            if len(attempts(folder)) == num_attempts:
                for path in sorted(archive.iterdir(), key=lambda path: path.name == "result.json"):
                    path.rename(folder / path.name)
                archive.rmdir()

        return restore

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """Yield the checkpoints and partial files of each folder that no process holds."""
        for folder in folders:
            files = [path for path in folder.glob("checkpoint-*.pt") if path.is_file()]
            files += partials(folder)
            if files and holder(folder) is None:
                num_bytes = sum(path.stat().st_size for path in files)
                yield Spare(len(files), num_bytes, partial(_delete, files))

    @contextmanager
    def probe(self) -> Iterator[Callable[[], bool]]:
        """A machine that sees this folder fails to create a file in it that exists."""
        with probe(self.folder / "trials") as made:
            yield partial(_sees, made)


def _names(trials: Path) -> list[str]:
    try:
        return os.listdir(trials)
    except OSError:
        return []


def _delete(files: Sequence[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def _sees(made: Path) -> bool:
    try:
        return not creates(made)
    except OSError:  # this machine has no such folder
        return False
