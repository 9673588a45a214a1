"""The interface of a tracker, and what it gets of a trial."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from pipegap.trainer.config.names import names
from pipegap.trainer.folder.result import Row


@dataclass(frozen=True)
class About:
    """What a tracker gets before the first row of a trial."""

    trial_id: str
    sweeps: tuple[str, ...]
    """Labels of the sweeps that ask for the trial, e.g. main-tiny; never empty."""
    arm: str
    setting: str
    """The values of the swept keys, in words, without the optimizer."""
    config: Mapping[str, Any]
    """Resolved, as in config.json."""
    wait: float
    """Seconds that the trial's end waits for the tracker."""

    @property
    def store(self) -> Path:
        """The results folder."""
        return Path(self.config["results"])

    @property
    def choices(self) -> dict[str, str]:
        """Group of the config → name of its choice, e.g. optimizer → adamw."""
        return names(self.config)

    @property
    def name(self) -> str:
        """Optimizer, setting, arm and seed."""
        return run_name(self.config, self.setting, self.arm)


def run_name(config: Mapping[str, Any], setting: str, arm: str) -> str:
    """Return `muon optimizer.lr=0.01 delay_ef seed 2`; `setting` stands in the middle."""
    parts = (names(config)["optimizer"], setting, arm, f"seed {config['seed']}")
    return " ".join(filter(None, parts))


def hyperparameters(about: About) -> dict[str, str | float | bool]:
    """Return the arm, the choices and every number and flag of the config, by dotted keys."""
    plain = {"arm": about.arm, **about.choices}
    return plain | {key: value for key, value in _leaves(about.config) if key not in plain}


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | bool]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float):
            yield f"{prefix}{key}", value


class Tracker(Protocol):
    """Follows one attempt at a trial.

    The constructor `_target_(about, **keys)` starts it. All calls come from one thread, which is
    not the trial's. An exception ends the tracking, never the trial. A tracker must not change what
    the process shares: random states, signals, output.
    """

    def log(self, row: Row) -> None:
        """Takes a row of metrics.jsonl.

        Rows come in order of `update`. An attempt that resumes from a checkpoint starts there, and
        repeats the rows that the attempt before it logged after the checkpoint.
        """

    def finish(self, outcome: Row) -> None:
        """Takes the trial's result, or of an attempt without one only its `status`: `failed`,
        `stopped`, or `elsewhere` if another process took the trial over."""


class NoTracker:
    """Ignores every row."""

    def __init__(self, about: About) -> None:
        pass

    def log(self, row: Row) -> None:
        """See `Tracker`."""

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""


def numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield path and number of a row, e.g. diagnostics/all/update_cosine for a nested number."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, Real):
            yield f"{prefix}{key}", float(value)


def summary(outcome: Row) -> Row:
    """Return the values of a trial's outcome that a tracker shows beside its curves."""
    keys = ("final_val_loss", "diverged_at", "delays", "wall_seconds")
    outcome_shown = {key: outcome[key] for key in keys if key in outcome}
    return {
        "status": str(outcome["status"]),
        **outcome_shown,
    }  # wandb writes the name of an enumeration
