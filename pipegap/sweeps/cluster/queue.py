"""Which trial a driver runs next, while other drivers run trials of the same store.

Every driver has an order of its own, so that two of them seldom want the same trial. It skips what
others have started and comes back to it later, since their driver may die.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from hashlib import sha256
from math import frexp
from uuid import uuid4

from pipegap.sweeps.request.expand import Trial
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


def in_order(trials: Iterable[Trial], driver: str) -> list[Trial]:
    """Return the trials in the order of a driver.

    Long ones come first, so that none of them starts last; those that differ by less than a factor
    of two come in an order that `driver`, any text, decides.
    """

    def key(trial: Trial) -> tuple[int, bytes]:
        mixed = sha256(f"{driver} {trial.trial_id}".encode()).digest()
        return -frexp(trial.plan.flops)[1], mixed  # frexp's second part: the power of two

    return sorted(trials, key=key)


class WorkList:
    """The trials of a store that one driver may have to run.

    It has two parts: trials whose turn comes, and trials that another driver had when it came.
    `driver` is any text, by which its order differs from that of others; `clock` returns seconds.
    """

    def __init__(
        self, store: SweepStore, driver: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._driver, self._clock = store, driver or uuid4().hex, clock
        self._trials: dict[str, Trial] = {}
        self._turns: deque[Trial] = deque()
        self._elsewhere: deque[Trial] = deque()
        self._started_before: set[str] = set()
        self._returns = Counter[str]()
        self._next_look = clock()
        self._ready: Trial | None = None

    def __len__(self) -> int:
        """Return how many trials are left, those of other drivers included."""
        return len(self.left)

    @property
    def left(self) -> list[Trial]:
        """The trials that are left, those that other drivers run included."""
        return [*filter(None, (self._ready, *self._turns, *self._elsewhere))]

    @property
    def has_turns(self) -> bool:
        """Whether a trial is left whose turn has not come yet."""
        return bool(self._turns)

    def add(self, trials: Iterable[Trial]) -> None:
        """Add trials that have to run, unless they were added before."""
        new = {t.trial_id: t for t in trials if t.trial_id not in self._trials}
        if new:
            self._trials |= new
            self._turns.extend(in_order(new.values(), self._driver))
            self._started_before |= new.keys() & self._store.started(self._trials)

    def is_ready(self) -> bool:
        """Whether `next` has a trial now."""
        self._ready = self.next()
        return self._ready is not None

    def next(self) -> Trial | None:
        """Takes the next trial that nobody runs; None if there is none now."""
        trial, self._ready = self._ready or self._in_turn() or self._of_others(), None
        return trial

    def put_back(self, trial: Trial) -> None:
        """Returns a trial that another driver was faster to start."""
        self._returns[trial.trial_id] += 1
        if self._returns[trial.trial_id] <= MAX_RETURNS:
            self._elsewhere.append(trial)

    def _in_turn(self) -> Trial | None:
        """Take a trial whose turn it is.

        A trial that is not in the store yet needs no look, and one listing serves for all.
        """
        started = self._store.started(self._trials) if self._turns else ()
        # Another driver may start a trial after this listing: then `Held` puts it back.
        looks = 0
        while self._turns and looks < LOOKS_AT_ONCE:
            trial = self._turns.popleft()
            if trial.trial_id not in started:
                return trial
            # What has appeared in the store since it was added is run by another driver.
            state = TrialState.HELD
            if trial.trial_id in self._started_before:
                state, looks = self._store.state_of(trial), looks + 1
            if state == TrialState.FREE:
                return trial
            if state == TrialState.HELD:
                self._elsewhere.append(trial)
        return None

    def _of_others(self) -> Trial | None:
        """Take a trial that another driver held; look until one is held, then wait LOOK_EVERY."""
        looked_at = self._clock()
        if self._turns or looked_at < self._next_look:
            return None
        wait = 0.0
        for _ in range(min(LOOKS_AT_ONCE, len(self._elsewhere))):
            trial = self._elsewhere.popleft()
            state = self._store.state_of(trial)
            if state == TrialState.FREE:
                return trial
            if state == TrialState.HELD:
                self._elsewhere.append(trial)  # at the end: the next look is at another one
                wait = LOOK_EVERY
                break
        # On a slow file server a look takes long: the next one comes later, so that looks take at
        # most SHARE of the time.
        time_now = self._clock()
        self._next_look = time_now + max(wait, (time_now - looked_at) / SHARE)
        return None
