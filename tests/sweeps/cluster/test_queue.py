"""Drivers that share a store: each trial is offered once, and those of a dead driver again."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.cluster.queue import (
    LOOK_EVERY,
    LOOKS_AT_ONCE,
    MAX_RETURNS,
    WorkList,
    in_order,
)
from pipegap.sweeps.cluster.tune_hooks import Offers
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import points, unique
from pipegap.trainer.base.status import Status
from pipegap.trainer.folder.lease import leased
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.store import TrialState
from tests.support import small
from tests.support.drivers import of_flops, simulate


class InMemory:
    """A store of known looks, which counts them, and a clock."""

    def __init__(self, **looks: TrialState) -> None:
        self.looks, self.num_looks, self.now = dict(looks), 0, 0.0

    def started(self, trials: object) -> set[str]:
        return {*self.looks}

    def state_of(self, trial: Any) -> TrialState:
        self.num_looks += 1
        return self.looks[trial.trial_id]

    def queue(self, trial_ids: Sequence[str]) -> "Ids":
        """Of trials of which each is longer than the next one."""
        lengths = reversed(range(len(trial_ids)))
        trials = [of_flops(key, 2.0**n) for key, n in zip(trial_ids, lengths, strict=True)]
        store: Any = self
        queue = Ids(store, clock=lambda: self.now)
        queue.add(trials)
        return queue


class Ids(WorkList):
    """A work list that is read by ids."""

    def __iter__(self) -> Iterator[str]:
        return (trial.trial_id for trial in self.left)

    def take(self) -> str | None:
        trial = self.next()
        return None if trial is None else trial.trial_id


def test_long_trials_come_first_and_each_driver_has_an_order_of_its_own() -> None:
    trials = [of_flops("long", 9e9), *(of_flops(key, 2.0**20) for key in "abcdefgh")]
    one, other = in_order(trials, "one"), in_order(trials, "other")
    assert one[0] is other[0] is trials[0]
    assert sorted(map(id, one)) == sorted(map(id, other)) == sorted(map(id, trials))
    assert one != other
    assert one == in_order(trials, "one")


def test_a_trial_that_another_driver_starts_meanwhile_is_skipped_without_a_look() -> None:
    store = InMemory()
    queue = store.queue("abc")
    store.looks["a"] = TrialState.HELD
    assert (queue.take(), queue.take(), store.num_looks) == ("b", "c", 0)
    assert len(queue) == 1


def test_trials_that_were_started_before_are_taken_in_turn_if_nobody_runs_them() -> None:
    store = InMemory(a=TrialState.FREE, b=TrialState.HELD, c=TrialState.ENDED)
    queue = store.queue("abcd")
    assert [queue.take(), queue.take(), queue.take()] == ["a", "d", None]
    assert [*queue] == ["b"]


def test_the_trial_of_a_driver_that_died_is_taken_over() -> None:
    store = InMemory(a=TrialState.HELD)
    queue = store.queue("ab")
    assert [queue.take(), queue.take()] == ["b", None]
    store.looks["a"] = TrialState.FREE
    assert queue.take() is None, "not looked at again at once"
    store.now += LOOK_EVERY
    assert queue.take() == "a"
    assert len(queue) == 0


def test_waiting_asks_for_one_look_in_two_seconds_however_many_trials_others_hold() -> None:
    names = [f"{i}" for i in range(500)]
    store = InMemory(**dict.fromkeys(names, TrialState.HELD))
    queue = store.queue(names)
    while queue.has_turns:
        before = store.num_looks
        assert queue.take() is None
        assert store.num_looks - before <= LOOKS_AT_ONCE + 1
    before = store.num_looks
    for _ in range(1000):
        store.now += 0.1
        assert queue.take() is None
    assert store.num_looks - before == pytest.approx(100 / LOOK_EVERY, rel=0.1)


def test_trials_that_ended_elsewhere_are_dropped_without_a_wait() -> None:
    store = InMemory()
    queue = store.queue("abc")
    store.looks = dict.fromkeys("abc", TrialState.ENDED)
    assert queue.take() is None
    assert len(queue) == 0


def test_a_slow_store_is_asked_less() -> None:
    store = InMemory(**dict.fromkeys("abcdefgh", TrialState.HELD))
    queue = store.queue("abcdefgh")
    assert queue.take() is None
    quick = store.state_of

    def slow(trial: Any) -> TrialState:
        store.now += 5.0
        return quick(trial)

    store.state_of = slow  # type: ignore[method-assign]
    store.now, before = 100.0, store.num_looks
    while store.now < 1100.0:
        queue.take()
        store.now += 0.1
    assert (store.num_looks - before) * 5.0 <= 0.11 * 1000


def test_readiness_takes_no_trial() -> None:
    queue = InMemory().queue("ab")
    assert queue.is_ready()
    assert queue.is_ready()
    assert ([*queue], len(queue)) == (["a", "b"], 2)
    assert [queue.take(), queue.take(), queue.take()] == ["a", "b", None]
    assert not queue.is_ready()


def test_a_trial_that_comes_back_again_and_again_counts_as_tried() -> None:
    """Its process dies on a machine that this one cannot see into."""
    store = InMemory()
    queue = store.queue("a")
    num_taken = 0
    while len(queue):
        store.now += LOOK_EVERY
        if (taken := queue.next()) is not None:
            num_taken += 1
            store.looks[taken.trial_id] = TrialState.FREE
            queue.put_back(taken)
    assert num_taken == 1 + MAX_RETURNS


def test_what_came_back_elsewhere_is_left_and_what_failed_is_not() -> None:
    store = InMemory()
    queue = store.queue("abc")
    offers = Offers(queue, lambda trial: {"id": trial.trial_id}, lambda: 2, lambda: False)
    assert (offers.metric, offers.mode) == (None, None), "Tune asks: nothing is optimized"
    offered: list[Any] = [offers.suggest(f"tune {i}") for i in range(4)]
    assert offered == [*({"trial": {"id": trial_id}} for trial_id in "abc"), None]
    store.looks["b"] = TrialState.HELD
    offers.on_trial_complete("tune 0", {"status": Status.COMPLETED})
    offers.on_trial_complete("tune 1", {"status": Status.ELSEWHERE})
    offers.on_trial_complete("tune 2", None, error=True)
    assert [*queue] == ["b"]
    assert offers.suggest("tune 5") == Offers.FINISHED, "Tune's run ends; the driver waits"
    store.looks["b"], store.now = TrialState.FREE, LOOK_EVERY
    assert queue.is_ready()


def test_no_more_is_offered_than_there_are_slots_and_one_and_nothing_after_a_signal() -> None:
    asked = False
    queue = InMemory().queue("abcdef")
    offers = Offers(queue, lambda trial: {"id": trial.trial_id}, lambda: 1, lambda: asked)
    assert [offers.suggest(f"tune {i}") is None for i in range(4)] == [False, False, True, True]
    asked = True
    assert offers.suggest("tune 9") == Offers.FINISHED
    assert len(queue) == 4


def test_two_drivers_of_which_one_dies(tmp_path: Path) -> None:
    """Of four trials the other driver holds two, and dies: this one runs all four."""
    words = small.overrides(tmp_path, "sweep=main", "seeds=[0,1]", "grid.optimizer=[adamw]")
    [sweep] = parse_request([*words, "scale=micro"]).sweeps.values()
    trials = unique(
        trial
        for point in points(sweep, tmp_path / "results")
        for trial in point.trials(sweep.seeds)
    )[:4]
    store = FileStore(tmp_path / "results")
    mine, other = WorkList(store), WorkList(store)
    mine.add(trials)
    other.add(trials)
    held = [trial for _ in range(2) if (trial := other.next()) is not None]
    for trial in held:
        trial.folder.mkdir(parents=True)
    with leased(held[0].folder, lambda: "x"), leased(held[1].folder, lambda: "x"):
        taken = [mine.next() for _ in range(4)]
    assert taken.count(None) == 2
    assert {trial.trial_id for trial in mine.left} == {trial.trial_id for trial in held}
    assert store.state_of(held[0]) == TrialState.FREE


@pytest.mark.parametrize("num_drivers", [1, 2, 8, 64])
def test_many_drivers_lose_little(num_drivers: int) -> None:
    done, ratio = simulate(num_drivers)
    assert len(done.ends) == num_drivers * 10
    assert ratio < 1.1
    assert done.num_held <= 0.6 * done.waiting + num_drivers
