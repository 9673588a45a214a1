"""A store that is a folder, of this machine or of a file system that all machines mount."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sweeps.request.expand import Trial
from sweeps.store.again import ArchivedOutput
from sweeps.store.look import Folders
from sweeps.store.results import creates, probe, require_writable
from sweeps.store.store import Config, Running, Spare, never
from trainer.base.atomic import partials
from trainer.folder.lease import Held, holder
from trainer.folder.record import trial_folder


class FileStore:
    """See `Store`. What is written in the folder is seen by all: nothing is pulled or pushed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        """Its path."""
        return str(self.folder)

    def require_usable(self) -> None:
        """See `Store`."""
        require_writable(self.folder)

    def pull(self) -> None:
        """Nothing."""

    def push(self, *paths: Path) -> None:
        """Nothing."""

    def trials(self) -> Folders:
        """See `Store`."""
        return Folders()

    @contextmanager
    def running(self, config: Config, trial_id: str) -> Iterator[Running]:
        """The trainer itself takes and keeps the lease of the trial's folder."""
        if holder(trial_folder(config, trial_id)) is not None:
            raise Held("trial", trial_id, "another process runs this trial")
        yield Running(config, never)

    def archive(self, trial: Trial) -> ArchivedOutput:
        """See `Store`."""
        return ArchivedOutput(trial.folder)

    def spare(self, folders: Sequence[Path]) -> Iterator[Spare]:
        """See `Store`."""
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


def _delete(files: Sequence[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def _sees(made: Path) -> bool:
    try:
        return not creates(made)
    except OSError:  # this machine has no such folder
        return False
