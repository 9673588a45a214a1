"""The progress of a sweep's trials, from the driver that runs them or from the store."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pipegap.sweeps.request.expand import Expected, Trial
from pipegap.trainer.base.errors import ACTIVE, ENDED, FINAL, Status
from pipegap.trainer.folder.lease import attempts, holder
from pipegap.trainer.folder.wellformed import Row, last_row, row_number
from pipegap.trainer.store.snapshot import Snapshot

STATUSES = (*ENDED, *ACTIVE, Status.INTERRUPTED, Status.WAITING)
"""What a trial of a sweep can be, in the order in which a view counts them."""
SILENT = 600.0
"""Seconds without a trial that ended after which a driver says what it waits for."""
SURE = 60.0
"""Seconds of warm trials, in all, after which their pace says whether they are slow."""
WARMING = 2
"""The first updates, which no pace counts: one that follows nothing, and one that follows another
may each compile."""


class Warm(NamedTuple):
    """How far a trial was when its process had done all kinds of work once: the WARMING first
    updates, and later an evaluation.

    They compile, start libraries and fill caches, which may take as long as a thousand others: no
    pace counts them.
    """

    num_done: int = 0
    wall_seconds: float = 0.0

    @classmethod
    def after(cls, row: Row) -> "Warm":
        """Return how far a trial was after a row of metrics.jsonl."""
        return cls(row["update"] + 1, row.get("wall_seconds", 0.0))


COLD = Warm()


@dataclass
class State:
    """The progress of one trial."""

    status: Status = Status.WAITING
    num_done: int = 0
    """The number of updates that are done."""
    tokens_per_second: float = 0.0
    """The speed at the last row."""
    wall_seconds: float = 0.0
    """The seconds of all attempts together, up to the last row."""
    where: str = ""
    """Host and process id, if the trial runs."""
    warm: Warm = COLD
    """The point from which the pace counts."""

    def update(self, row: Row, warm: Warm) -> None:
        """Take the progress from a row of metrics.jsonl."""
        self.num_done = row["update"] + 1
        self.tokens_per_second = row.get("tokens_per_second", 0.0)
        self.wall_seconds = row.get("wall_seconds", 0.0)
        self.warm = warm


class Progress:
    """The trials of a sweep with their states, which start as those of `earlier` if it has them.

    The work of a trial is the seconds that it is `expected` to take, or else its FLOPs. While
    nobody knows a pace, they are what is left.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        earlier: "Progress | None" = None,
        expected: Expected | None = None,
    ) -> None:
        states_before: Mapping[str, State] = {} if earlier is None else earlier.states
        self.trials = {trial.plan.trial_id: trial for trial in trials}
        self.states: dict[str, State] = {
            key: states_before.get(key, State()) for key in self.trials
        }
        self._expected = expected
        # Seconds or FLOPs: only shares and ratios of this work are used without `expected`.
        self._work = expected.seconds if expected else {t.trial_id: t.plan.flops for t in trials}

    def refresh(self, trial_ids: Iterable[str], snapshot: Snapshot) -> None:
        """Take the states of these trials from the store, unless they are final."""
        for trial_id in trial_ids:
            if self.states[trial_id].status not in FINAL:
                self.states[trial_id] = read_state(self.trials[trial_id].folder, snapshot)

    def of(self, *statuses: Status) -> Iterator[tuple[Trial, State]]:
        """Yield the trials with one of these statuses."""
        pairs = zip(self.trials.values(), self.states.values(), strict=True)
        return ((trial, state) for trial, state in pairs if state.status in statuses)

    @property
    def counts(self) -> Counter[Status]:
        """Status → number of trials."""
        return Counter(state.status for state in self.states.values())

    @property
    def tokens_per_second(self) -> float:
        """The sum over all running trials."""
        return sum(state.tokens_per_second for _, state in self.of(*ACTIVE))

    @property
    def share(self) -> float:
        """The share of all trials' work that is done, or belongs to a failed trial."""
        total = sum(self._work[key] for key in self.trials)
        work_left = sum(self._left(*pair) for pair in self.of(*STATUSES))
        return 1 - work_left / total if total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all trials have ended, at their pace so far, evaluation included.

        At least as long as the slowest running trial takes. The first trials of a sweep that
        compiles wait for its graphs: until as many trials have ended as run at once, no pace
        counts. None if no trial runs, or if neither a price nor a pace is known.
        """
        running = [*self.of(*ACTIVE)]
        paced = [pair for pair in running if self._pace(*pair)]
        paces = [pace for pair in self.of(*ACTIVE, *ENDED) if (pace := self._pace(*pair))]
        if not running or not (paces or self._expected):
            return None
        work_left = sum(self._left(*pair) for pair in self.of(*STATUSES)) / len(running)
        compiler = self._expected.compiler if self._expected else 0.0
        # Without a pace the work, in expected seconds, passes at one second per second.
        if not paces or (compiler and len([*self.of(*ENDED)]) < len(running)):
            return work_left + compiler
        slowest = max((self._left(*pair) / self._pace(*pair) for pair in paced), default=0.0)
        return max(work_left / median(paces), slowest)

    @property
    def slowdown(self) -> float:
        """How many times as long as expected the trials take that have run here, all together: also
        many short ones say so. 1 while that is not known."""
        seconds = work = 0.0
        for trial, state in self.of(Status.RUNNING, *ENDED):
            # The store has no warm state of what ended: whoever ran that, and when, is not known.
            is_of_here = state.status == Status.RUNNING or state.warm != COLD
            if is_of_here and (pace := self._pace(trial, state)):
                warm_seconds = state.wall_seconds - state.warm.wall_seconds
                seconds, work = seconds + warm_seconds, work + warm_seconds * pace
        return seconds / work if seconds >= SURE and self._expected else 1.0

    @property
    def waits_for(self) -> str:
        """What has to happen before the next trial ends."""
        if running := [*self.of(Status.RUNNING)]:
            trial, state = max(
                running, key=lambda pair: pair[1].num_done / pair[0].plan.num_updates
            )
            at = f"update {state.num_done:,} of {trial.plan.num_updates:,}"
            return f"{len(running)} run, the furthest, {trial.name}, is at {at}"
        if num_elsewhere := self.counts[Status.ELSEWHERE]:
            return f"{num_elsewhere} run by other drivers, none here"
        waiting = self.counts[Status.WAITING] + self.counts[Status.INTERRUPTED]
        return f"none runs, {waiting} wait until Ray has the cores or GPUs of one free"

    def _pace(self, trial: Trial, state: State) -> float:
        """Return the work per second of a trial since it is warm; 0 if that is not known."""
        # A resumed trial counts on: both numbers are of all attempts together.
        share = (state.num_done - state.warm.num_done) / trial.plan.num_updates
        seconds = state.wall_seconds - state.warm.wall_seconds
        has_pace = share > 0 and seconds > 0
        return self._work[trial.trial_id] * min(1.0, share) / seconds if has_pace else 0.0

    def _left(self, trial: Trial, state: State) -> float:
        share = min(1.0, state.num_done / trial.plan.num_updates)
        return 0.0 if state.status in ENDED else self._work[trial.trial_id] * (1 - share)


def read_state(folder: Path, snapshot: Snapshot) -> State:
    """Return the state of the trial in `folder`, which need not exist. Of one that this user may
    not read nothing is known."""
    with suppress(PermissionError):
        return _read_state(folder, snapshot)
    return State()


def _read_state(folder: Path, snapshot: Snapshot) -> State:
    result = snapshot.result(folder)
    if result is not None and result["status"] != Status.FAILED:
        status, num_done = Status(result["status"]), result["num_updates"]
        return State(status, num_done, wall_seconds=result["wall_seconds"])
    lease_holder = holder(folder)
    if lease_holder is None and result is not None:  # with a holder it is tried again
        return State(Status.FAILED)
    if not attempts(folder):  # nobody has ever started it
        return State()
    state = State(Status.INTERRUPTED)
    if lease_holder is not None:
        where = f"{lease_holder.get('host', '?')} pid {lease_holder.get('pid', '?')}"
        state = State(Status.RUNNING, where=where)
    if (row := last_row(folder)) is not None:
        state.update(row, Warm.after(row_number(folder, WARMING) or row))
    return state
