"""What sweeps need of a store, whether it is a folder that machines share or an object store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sweeps.request.expand import Trial
from sweeps.store.look import Look

Config = Mapping[str, Any]


def never() -> bool:
    """A trial that nobody takes over unseen."""
    return False


class Running(NamedTuple):
    """A trial that this process may run."""

    config: Config
    """With the folder in which it runs."""
    is_lost: Callable[[], bool]
    """Whether it must stop, because another process has it, or may take it."""


class Spare(NamedTuple):
    """What of a trial can be deleted."""

    num_files: int
    num_bytes: int
    delete: Callable[[], object]


class Archived(Protocol):
    """The output of a finished trial, put aside so that the trial can run again."""

    def restore_unless_started(self) -> None:
        """Puts everything back if no new attempt at the trial was made."""


class Trials(Protocol):
    """Trials by their ids, and what became of them: see `sweeps.cluster.queue.Store`."""

    def __getitem__(self, trial_id: str) -> Trial: ...

    def add(self, trial: Trial) -> None:
        """Makes a trial known."""

    def started(self) -> Collection[str]:
        """Ids of the known trials that any driver has started, whatever became of them."""

    def look(self, trial_id: str) -> Look:
        """What the store says of a started trial."""


class Store(Protocol):
    """A store. It may be sent to the workers of a cluster.

    Its methods raise StoreAway if it does not answer.
    """

    @property
    def name(self) -> str:
        """As people call it: a path or a URL."""

    @property
    def folder(self) -> Path:
        """Where this machine reads it, and writes records of sweeps and reports."""

    def require_usable(self) -> None:
        """Raises BadInput if it cannot be written, or cannot hold a lease."""

    def pull(self) -> None:
        """Brings `folder` up to date."""

    def push(self, *paths: Path) -> None:
        """Gives others these files of `folder`, and the files of folders in it."""

    def trials(self) -> Trials:
        """Trials to be made known."""

    def running(self, config: Config, trial_id: str) -> AbstractContextManager[Running]:
        """The trial, to be run within the context; a finished one comes with its result.

        Raises Held if another process runs it, LeaseLost if one took it over meanwhile.
        """

    def archive(self, trial: Trial) -> Archived:
        """Puts the output of a finished trial aside."""

    def spare(self, folders: Sequence[Path]) -> Iterable[Spare]:
        """Checkpoints of the trials in these folders of `folder`, and what killed processes left;
        nothing of a trial that a process runs."""

    def probe(self) -> AbstractContextManager[Callable[[], bool]]:
        """Yields a function that says, on any machine, whether that one sees this same store."""
