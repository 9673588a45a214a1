"""Which trial a driver runs next, while other drivers run trials of the same store.

Every driver has an order of its own, so that two of them seldom want the same trial. It skips what
others have started and comes back to it later, since their driver may die.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import frexp
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.tracking.choice import Tracking
from pipegap.trainer.store.store import SweepStore, TrialState

LOOK_EVERY = 2.0
"""Seconds between two looks at trials that others hold. A look is about ten operations of the file
system, so that a driver with nothing to run asks for five per second, however many trials wait."""
SHARE = 0.1
"""The largest share of the time that looks may take: of a slow file server they ask less."""
LOOKS_AT_ONCE = 20
"""How many trials one call of `next` looks at: its caller has signals to handle."""
MAX_RETURNS = 10
"""How often a trial comes back as held by another driver before it counts as tried. More often, it
kills its process on one machine while another one cannot see that it is dead."""


def in_order(flops: Mapping[str, float], driver: str) -> list[str]:
    """Return the ids in `flops` (id → length of the trial) in the order of a driver.

    Long trials come first, so that none of them starts last; those that differ by less than a
    factor of two come in an order that `driver`, any text, decides.
    """

    def key(trial_id: str) -> tuple[int, bytes]:
        return -frexp(flops[trial_id])[1], sha256(f"{driver} {trial_id}".encode()).digest()

    return sorted(flops, key=key)


class StartedTrials(Protocol):
    """What drivers see of each other's trials: which are started, which free."""

    def started(self) -> Collection[str]:
        """Return the ids of the trials that any driver has started, ended ones included."""

    def state_of(self, trial_id: str) -> TrialState:
        """Return what the store says of a started trial."""


class TrialQueue:
    """The trials that one driver may have to run. `clock` returns seconds.

    It has two parts: trials whose turn comes, and trials that another driver had when it came.
    """

    def __init__(self, store: StartedTrials, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._turns: deque[str] = deque()
        self._elsewhere: deque[str] = deque()
        self._known: set[str] = set()
        self._started_before: set[str] = set()
        self._returns = Counter[str]()
        self._next_look = clock()
        self._ready: str | None = None

    def __len__(self) -> int:
        """Return how many trials are left, those of other drivers included."""
        return (self._ready is not None) + len(self._turns) + len(self._elsewhere)

    def __contains__(self, trial_id: str) -> bool:
        """Whether the trial was ever added."""
        return trial_id in self._known

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of the trials that are left."""
        yield from filter(None, (self._ready, *self._turns, *self._elsewhere))

    @property
    def has_turns(self) -> bool:
        """Whether a trial is left whose turn has not come yet."""
        return bool(self._turns)

    def add(self, trial_ids: Iterable[str]) -> None:
        """Append trials, in this order, unless they were added before."""
        new = [trial_id for trial_id in trial_ids if trial_id not in self._known]
        self._turns.extend(new)
        self._known.update(new)
        if new:
            self._started_before |= {*new} & {*self._store.started()}

    def is_ready(self) -> bool:
        """Whether `next` has a trial now."""
        self._ready = self.next()
        return self._ready is not None

    def next(self) -> str | None:
        """Takes the next trial that nobody runs; None if there is none now."""
        trial_id, self._ready = self._ready or self._in_turn() or self._of_others(), None
        return trial_id

    def put_back(self, trial_id: str) -> None:
        """Returns a trial that another driver was faster to start."""
        self._returns[trial_id] += 1
        if self._returns[trial_id] <= MAX_RETURNS:
            self._elsewhere.append(trial_id)

    def _in_turn(self) -> str | None:
        """Take a trial whose turn it is.

        A trial that is not in the store yet needs no look, and one listing serves for all.
        """
        started = self._store.started() if self._turns else ()
        looks = 0
        while self._turns and looks < LOOKS_AT_ONCE:
            trial_id = self._turns.popleft()
            if trial_id not in started:
                return trial_id
            # What has appeared in the store since it was added is run by another driver.
            state = TrialState.HELD
            if trial_id in self._started_before:
                state, looks = self._store.state_of(trial_id), looks + 1
            if state == TrialState.FREE:
                return trial_id
            if state == TrialState.HELD:
                self._elsewhere.append(trial_id)
        return None

    def _of_others(self) -> str | None:
        """Take a trial that another driver held; look until one is held, then wait LOOK_EVERY."""
        looked_at = self._clock()
        if self._turns or looked_at < self._next_look:
            return None
        wait = 0.0
        for _ in range(min(LOOKS_AT_ONCE, len(self._elsewhere))):
            trial_id = self._elsewhere.popleft()
            state = self._store.state_of(trial_id)
            if state == TrialState.FREE:
                return trial_id
            if state == TrialState.HELD:
                self._elsewhere.append(trial_id)
                wait = LOOK_EVERY
                break
        # On a slow file server a look takes long: the next one comes later, so that looks take at
        # most SHARE of the time.
        now = self._clock()
        self._next_look = now + max(wait, (now - looked_at) / SHARE)
        return None


class WorkList:
    """The trials of a store that one driver may have to run, by id."""

    def __init__(self, store: SweepStore) -> None:
        self._driver, self._store = uuid4().hex, store
        self._trials: dict[str, Trial] = {}
        self.queue = TrialQueue(self)
        """Ids of the trials that are left."""

    def __getitem__(self, trial_id: str) -> Trial:
        return self._trials[trial_id]

    def started(self) -> Collection[str]:
        """See `StartedTrials`."""
        return self._store.started(self._trials)

    def state_of(self, trial_id: str) -> TrialState:
        """See `StartedTrials`."""
        return self._store.state_of(self._trials[trial_id])

    def __len__(self) -> int:
        """Return how many trials are left, those that other drivers run included."""
        return len(self.queue)

    @property
    def left(self) -> list[Trial]:
        """The trials that are left, those that other drivers run included."""
        return [self[trial_id] for trial_id in self.queue]

    def add(self, trials: Iterable[Trial]) -> None:
        """Add trials that have to run, unless they were added before."""
        new = {t.plan.trial_id: t for t in trials if t.plan.trial_id not in self.queue}
        self._trials |= new
        flops = {trial_id: trial.plan.flops for trial_id, trial in new.items()}
        self.queue.add(in_order(flops, self._driver))


@dataclass(frozen=True)
class Session:
    """What trials of a store run with. `gpus_per_trial` and `tracking` are those of a request."""

    title: str
    """What people see of it."""
    store: SweepStore
    gpus_per_trial: float
    tracking: Tracking
    folder: Path
    """For temporary files."""
    asked_to_stop: Callable[[], bool]
