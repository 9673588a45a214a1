"""What a tracker is, and what it is told of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from trainer.build import label
from trainer.record import Row


@dataclass(frozen=True)
class About:
    """What a tracker is told of a trial before its first row."""

    trial_id: str
    sweep: str
    """Name and scale of the sweep that runs it, e.g. main-tiny."""
    arm: str
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
        """The names of the config's choices, e.g. optimizer → adamw."""
        nodes = {key: node for key, node in self.config.items() if isinstance(node, Mapping)}
        return {key: label(node) for key, node in nodes.items() if "_target_" in node}


class Tracker(Protocol):
    """Follows one attempt at a trial.

    To make it is to start it: `_target_(about, **keys)`. All is called in one thread, which is not
    the trial's; what it raises ends the tracking, never the trial. It must leave alone what the
    process shares: random states, signals, output.
    """

    def log(self, row: Row) -> None:
        """Takes a row of metrics.jsonl.

        They come in order of `update`. An attempt that goes on from a checkpoint starts there: it
        repeats the rows that the attempt before made beyond it.
        """

    def finish(self, outcome: Row) -> None:
        """Takes the trial's result; of an attempt that came to none its `status` alone: `failed`,
        `stopped`, or `elsewhere` when another process took the trial over.
        """


class NoTracker:
    """Tells nobody."""

    def __init__(self, about: About) -> None:
        pass

    def log(self, row: Row) -> None:
        """See `Tracker`."""

    def finish(self, outcome: Row) -> None:
        """See `Tracker`."""


def numbers(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a row; nested ones by their path, e.g. diagnostics/all/update_cosine."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, Real):
            yield f"{prefix}{key}", float(value)


def summary(outcome: Row) -> Row:
    """What is shown of a trial beside its curves, as far as it is known."""
    keys = ("status", "final_val_loss", "diverged_at", "delays", "wall_seconds")
    return {key: outcome[key] for key in keys if key in outcome}
