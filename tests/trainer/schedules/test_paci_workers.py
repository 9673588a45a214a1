"""PACI's schedule against the loop of its public code's workers, simulated event by event.

The loop: github.com/ItayElam/PACI, commit 3e45e71, `DistPACI/Workers.py`.
"""

from collections.abc import Callable
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipegap.trainer.schedules.recipes import paci

T = 6
Seen = dict[tuple[str, int, int], int]
"""(F or B, stage, microbatch) → how many updates its stage had made."""


class Turn(NamedTuple):
    """What a worker does next: of two things at one time, the backward."""

    start: float
    kind: str
    stage: int


class Workers:
    """p stages that each step themselves after every `a` backwards, with nobody else's consent.

    Stage s goes forward only while fewer than p − s microbatches are on their way through it, and
    goes back first if a gradient is there. Stage 0 always has the next batch's data: the code
    sends up to p + 4 microbatches ahead, and stage 0 takes p. The last stage gets the gradient of
    a forward from itself. `lasts(kind, stage)` is the time that an operation takes; a message takes
    none.
    """

    def __init__(self, p: int, a: int, lasts: Callable[[str, int], float]) -> None:
        self._p, self._a, self._lasts = p, a, lasts
        self._free = [0.0] * p
        self._done = {kind: [0] * p for kind in "FB"}
        arrivals: list[list[float]] = [[0.0] * (T * a), *([] for _ in range(p - 1))]
        self._arrived = {"F": arrivals, "B": [[] for _ in range(p)]}

    def seen(self) -> Seen:
        """What every forward and backward of T batches sees."""
        seen: Seen = {}
        while (turn := min(map(self._next, range(self._p)))).start < inf:
            done = self._done[turn.kind]
            place = turn.kind, turn.stage, done[turn.stage]
            seen[place] = self._done["B"][turn.stage] // self._a
            self._free[turn.stage] = turn.start + self._lasts(turn.kind, turn.stage)
            done[turn.stage] += 1
            self._send(turn, self._free[turn.stage])
        return seen

    def _next(self, stage: int) -> Turn:
        forwards, backwards = self._done["F"][stage], self._done["B"][stage]
        may_go_forward = forwards - backwards < self._p - stage
        back = Turn(self._start("B", stage), "B", stage)
        forth = Turn(self._start("F", stage) if may_go_forward else inf, "F", stage)
        return min(back, forth)

    def _start(self, kind: str, stage: int) -> float:
        number, arrived = self._done[kind][stage], self._arrived[kind][stage]
        return max(self._free[stage], arrived[number]) if number < len(arrived) else inf

    def _send(self, turn: Turn, now: float) -> None:
        is_last = turn.stage == self._p - 1
        if turn.kind == "F":
            kind, to = ("B", turn.stage) if is_last else ("F", turn.stage + 1)
            self._arrived[kind][to].append(now)
        elif turn.stage > 0:
            self._arrived["B"][turn.stage - 1].append(now)


def ours(p: int, a: int) -> Seen:
    phases = {"synchronous_start": 0, "synchronous_cooldown": 0}
    schedule = paci(T, num_stages=p, num_microbatches=a, **phases)
    return {
        (op.kind, op.stage, op.batch * a + op.microbatch): op.version
        for operations in schedule.operations(0, T)
        for op in operations
        if op.kind != "U"
    }


FULL: dict[str, Callable[[str, int], float]] = {
    "equal stages": lambda kind, stage: 1.0 if kind == "F" else 2.0,
    "a long last stage": lambda kind, stage: 1.0 + stage,
}
"""Times with which every stage always has as many microbatches on their way as it may."""


@pytest.mark.parametrize("a", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("times", FULL)
def test_full_workers_see_what_the_schedule_says(times: str, p: int, a: int) -> None:
    seen = Workers(p, a, FULL[times]).seen()
    assert seen == ours(p, a)
    assert seen == {
        (kind, s, i): max(0, (i - (p - 1 - s if kind == "F" else 0)) // a)
        for kind in "FB"
        for s in range(p)
        for i in range(T * a)
    }


@given(p=st.integers(1, 5), a=st.integers(1, 6), jitter=st.randoms(use_true_random=False))
def test_whatever_the_times_no_worker_sees_older_weights(p: int, a: int, jitter: Random) -> None:
    """And a backward always sees what the schedule says."""
    seen = Workers(p, a, lambda kind, stage: jitter.uniform(0.1, 5)).seen()
    oldest = ours(p, a)
    assert seen.keys() == oldest.keys()
    for place, version in seen.items():
        assert version >= oldest[place]
        assert place[0] == "F" or version == oldest[place]
