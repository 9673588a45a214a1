"""How far the trials of a sweep are, whoever tells it: the driver that runs them, or the store."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from sweeps.expand import Trial
from trainer.lease import attempts, holder
from trainer.record import Row, read_result

FINAL = ("completed", "diverged")
ENDED = (*FINAL, "failed")
STATUSES = (*ENDED, "running", "elsewhere", "interrupted", "waiting")
"""Of a trial, as a sweep sees it. Elsewhere: another driver runs it. Interrupted: it was begun,
and nobody runs it."""
RUN = ("running", "elsewhere")
TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that hold its last row."""


@dataclass
class State:
    """How far one trial is."""

    status: str = "waiting"
    num_done: int = 0
    """Updates."""
    tokens_per_second: float = 0.0
    """At its last row."""
    wall_seconds: float = 0.0
    """Of all its attempts, up to the last row."""
    where: str = ""
    """Host and process of a trial that runs."""

    def heard(self, row: Row) -> None:
        """Takes what a row of metrics.jsonl says of it."""
        self.num_done = row["update"] + 1
        self.tokens_per_second, self.wall_seconds = row["tokens_per_second"], row["wall_seconds"]


class Progress:
    """The trials of a sweep with their states, as far as they were known `before`."""

    def __init__(self, trials: Sequence[Trial], before: Progress | None = None) -> None:
        known: Mapping[str, State] = {} if before is None else before.states
        self.trials = {trial.plan.trial_id: trial for trial in trials}
        self.states: dict[str, State] = {of: known.get(of, State()) for of in self.trials}

    def look(self, trial_ids: Iterable[str]) -> None:
        """Reads from the store how far these are, of those that can still change."""
        for trial_id in trial_ids:
            if self.states[trial_id].status not in FINAL:
                self.states[trial_id] = look(self.trials[trial_id].folder)

    def of(self, *statuses: str) -> Iterator[tuple[Trial, State]]:
        """The trials with one of these statuses."""
        pairs = zip(self.trials.values(), self.states.values(), strict=True)
        return ((trial, state) for trial, state in pairs if state.status in statuses)

    @property
    def counts(self) -> Counter[str]:
        """Trials by status."""
        return Counter(state.status for state in self.states.values())

    @property
    def tokens_per_second(self) -> float:
        """Of all that run, together."""
        return sum(state.tokens_per_second for _, state in self.of(*RUN))

    @property
    def share(self) -> float:
        """Of the FLOPs of all trials, those that are done or given up."""
        total = sum(trial.plan.flops for trial in self.trials.values())
        left = sum(_flops_left(*pair) for pair in self.of(*STATUSES))
        return 1 - left / total if total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """At the pace of trials so far, evaluation included; None if nothing runs or tells one.

        No trial is cut in pieces: it takes as long as the slowest one at least.
        """
        running = [*self.of(*RUN)]
        paced = [pair for pair in running if _pace(*pair)]
        paces = [_pace(*pair) for pair in self.of(*RUN, *ENDED)]
        if not running or not any(paces):
            return None
        together = mean(filter(None, paces)) * len(running)
        left = sum(_flops_left(*pair) for pair in self.of(*STATUSES)) / together
        return max([left, *(_flops_left(*pair) / _pace(*pair) for pair in paced)])


def _pace(trial: Trial, state: State) -> float:
    """FLOP/s; 0 if it is not known."""
    done = trial.plan.flops * _share(trial, state)
    return done / state.wall_seconds if state.wall_seconds else 0.0


def _share(trial: Trial, state: State) -> float:
    return min(1.0, state.num_done / trial.plan.num_updates)


def _flops_left(trial: Trial, state: State) -> float:
    return 0.0 if state.status in ENDED else trial.plan.flops * (1 - _share(trial, state))


def look(folder: Path) -> State:
    """What a trial's folder says, also one that is not there."""
    result = read_result(folder)
    if result is not None and result["status"] != "failed":
        return State(result["status"], result["num_updates"], wall_seconds=result["wall_seconds"])
    held = holder(folder)
    if held is None and result is not None:
        return State("failed")
    if not attempts(folder):
        return State()
    state = State("interrupted")
    if held is not None:
        where = f"{held.get('host', '?')} pid {held.get('pid', '?')}"
        state = State("running", where=where)
    if (row := last_row(folder)) is not None:
        state.heard(row)
    return state


def last_row(folder: Path) -> Row | None:
    """The last whole row of metrics.jsonl; None if there is none."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return None
    whole = [line for line in lines if line.endswith(b"\n")]
    try:
        row: Row = json.loads(whole[-1])
    except (LookupError, ValueError):
        return None
    return row
