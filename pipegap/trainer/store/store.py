"""What sweeps need of a store, whether it is a folder that machines share or an object store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipegap.trainer.folder.lease import PATTERN

ARCHIVED = "earlier-"
"""How the names of the folders begin that keep what a trial made before it ran again."""
STAYS = ("config.json", "trial_id", PATTERN, f"{ARCHIVED}*", ".*")
"""Patterns of what `archive` does not move from a trial's folder."""

Config = Mapping[str, Any]


def stays(name: str) -> bool:
    """Return whether `archive` leaves a file of a trial's folder, given by its path in it."""
    return any(fnmatch(name.split("/", maxsplit=1)[0], pattern) for pattern in STAYS)


class Stored(Protocol):
    """A trial, as a store knows it."""

    @property
    def trial_id(self) -> str:
        """Its id."""

    @property
    def folder(self) -> Path:
        """Where it is recorded."""


class TrialState(Enum):
    """What a store says of a started trial."""

    FREE = auto()
    """It has to run, and no process runs it."""
    HELD = auto()
    """A process runs it, or the store does not answer."""
    DAMAGED = auto()
    """Nobody can run it before somebody deletes what is damaged of its folder."""
    ENDED = auto()
    """It has a result that stays."""


class RunningTrial(NamedTuple):
    """A trial that this process may run."""

    config: Config
    """With the folder in which it runs."""
    is_lost: Callable[[], bool] = lambda: False
    """Whether it must stop, because another process has it, or may take it."""


class Spare(NamedTuple):
    """What of a trial can be deleted."""

    num_files: int
    num_bytes: int
    delete: Callable[[], object]


class SweepStore(Protocol):
    """A store. It may be sent to the workers of a cluster.

    Its methods raise StoreAway if it does not answer.
    """

    @property
    def name(self) -> str:
        """What people call the store: a path or a URL."""

    @property
    def folder(self) -> Path:
        """Where this machine reads it, and writes records of sweeps and reports."""

    def require_usable(self) -> None:
        """Raise BadInput if it cannot be written, or cannot hold a lease."""

    def driven(self) -> AbstractContextManager[None]:
        """Be the store's driver while the context lasts: whoever writes to it is.

        Several drivers may share a folder; a bucket has one: raises BadInput if another one lives.
        """

    def pull(self) -> None:
        """Bring `folder` up to date."""

    def push(self, *paths: Path) -> None:
        """Give others these files of `folder`, and the files of folders in it."""

    def started(self, trials: Mapping[str, Stored]) -> set[str]:
        """Return the ids of those trials that any driver has started, ended ones included, as far
        as the last `pull` saw them.

        `trials`: id → trial.
        """

    def state_of(self, trial: Stored) -> TrialState:
        """Return what the store says of a started trial."""

    def running(self, config: Config, trial_id: str) -> AbstractContextManager[RunningTrial]:
        """Yield the trial, to be run within the context; a finished one comes with its result.

        Raises Held if another process runs it, LeaseLost if one took it over meanwhile.
        """

    def archive(self, trial: Stored) -> Callable[[], object]:
        """Put the output of a finished trial aside, so that it can run again.

        Returns a function that puts everything back if no new attempt at the trial was made.
        """

    def spare(self, folders: Sequence[Path]) -> Iterable[Spare]:
        """Return checkpoints of the trials in these folders of `folder`, and what killed processes
        left; nothing of a trial that a process runs."""

    def probe(self) -> AbstractContextManager[Callable[[], bool]]:
        """Yield a function that says, on any machine, whether that one sees this same store."""
