"""Time over ideal of many drivers that share one store, by simulation of their real queues.

Each driver runs one trial at a time; there are ten for each driver, of 55 s give or take 5 %.
Order, skipping and looks are those of sweeps/cluster/queue.py on a store in memory. A trial takes
START seconds from its choice to its lease, or to the news that another driver was faster. As Tune
does, a driver chooses one trial ahead. Ideal: one queue without any delay.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from pipegap.sweeps.cluster.queue import WorkList
from pipegap.trainer.store.store import TrialState

SECONDS, SPREAD = 55.0, 0.05
TRIALS = 10
"""Per driver."""
START = 1.0
POLL = 0.1
"""Seconds between two questions of an idle driver to its queue."""


@dataclass
class Simulation:
    """The store and the clock, as far as a work list asks for them."""

    now: float = 0.0
    ends: dict[str, float] = field(default_factory=dict)
    """Started trial → when it ends."""
    num_held: int = 0
    """Looks at trials that another driver ran."""
    num_late: int = 0
    """Trials that another driver started between choice and lease."""
    waiting: float = 0.0
    """Seconds of all drivers with nothing left to choose but trials of others."""
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def started(self, trials: object) -> set[str]:
        """The trials that some driver has started."""
        return {*self.ends}

    def state_of(self, trial: Any) -> TrialState:
        """Whether a started trial is held or has ended now."""
        if self.ends[trial.trial_id] > self.now:
            self.num_held += 1
            return TrialState.HELD
        return TrialState.ENDED

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Calls `action` after so many simulated seconds."""
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, action))

    def run(self) -> None:
        """Runs until no event is left."""
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()


class Driver:
    """Takes trials from its queue, one at a time."""

    def __init__(self, simulation: Simulation, name: str, seconds: dict[str, float]) -> None:
        self._simulation, self._seconds = simulation, seconds
        store: Any = simulation
        self._work = WorkList(store, name, lambda: simulation.now)
        self._work.add([of_flops(trial_id, 1.0) for trial_id in seconds])
        self._chosen: Any = None
        self._is_busy = self._is_polling = False
        simulation.after(random.Random(name).uniform(0, START), self.fill)

    def fill(self) -> None:
        """Starts a trial if none runs, and chooses one ahead; polls while there is none."""
        self._choose()
        if not self._is_busy and self._chosen is not None:
            self._is_busy = True
            self._simulation.after(START, partial(self._claim, self._chosen))
            self._chosen = None
            self._choose()
        if self._chosen is None and len(self._work) and not self._is_polling:
            self._is_polling = True
            self._simulation.after(POLL, self._poll)

    def _choose(self) -> None:
        if self._chosen is None:
            self._chosen = self._work.next()

    def _poll(self) -> None:
        self._is_polling = False
        self._simulation.waiting += POLL
        self.fill()

    def _claim(self, trial: Any) -> None:
        if trial.trial_id in self._simulation.ends:
            self._simulation.num_late += 1
            self._work.put_back(trial)
            self._free()
        else:
            seconds = self._seconds[trial.trial_id]
            self._simulation.ends[trial.trial_id] = self._simulation.now + seconds
            self._simulation.after(seconds, self._free)

    def _free(self) -> None:
        self._is_busy = False
        self.fill()


def of_flops(trial_id: str, flops: float) -> Any:
    """What a work list asks of a trial."""
    return SimpleNamespace(trial_id=trial_id, plan=SimpleNamespace(flops=flops))


def simulate(num_drivers: int) -> tuple[Simulation, float]:
    """The simulation after its end, and the time over ideal."""
    draw, names = random.Random(num_drivers), [f"trial {i}" for i in range(num_drivers * TRIALS)]
    seconds = {name: SECONDS * draw.uniform(1 - SPREAD, 1 + SPREAD) for name in names}
    simulation = Simulation()
    for i in range(num_drivers):
        Driver(simulation, f"driver {i}", seconds)
    simulation.run()
    took = max(simulation.ends.values())
    return simulation, took / ideal([*seconds.values()], num_drivers)


def ideal(seconds: list[float], num_drivers: int) -> float:
    """Seconds until the last trial ends, if each driver takes the next one at once."""
    free = [0.0] * num_drivers
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
