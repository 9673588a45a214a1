"""Which cluster a driver joins or starts, and what it does when it is stopped."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import connection, driver, gang, stop_flag
from pipegap.sweeps.cluster.driver import Offers
from pipegap.sweeps.cluster.queue import LOOK_EVERY, LOOKS_AT_ONCE, MAX_RETURNS, WorkList, in_order
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial, points, unique
from pipegap.sweeps.tracking import tracker
from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.errors import GangFailed, Status
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.lease import leased
from pipegap.trainer.folder.wellformed import read_result
from pipegap.trainer.ranks.spawn import Parent
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.store.opened import BucketStore
from pipegap.trainer.store.store import TrialState
from tests.support import small_sweep
from tests.support.buckets import URL, Bucket
from tests.support.drivers import of_flops, simulate
from tests.support.processes import python
from tests.support.trials import leave_finished


class Flag:
    """Stands for the actor; `is_set.remote()` returns what `ray.get` is given."""

    def __init__(self) -> None:
        self.is_set = self

    def remote(self) -> str:
        return "answer"


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (ray.exceptions.ActorUnavailableError("restarts", None), False),
        (ray.exceptions.GetTimeoutError("busy"), False),
        (ray.exceptions.NodeDiedError("another node"), False),
        (ray.exceptions.ActorDiedError(), True),
    ],
)
def test_a_flag_that_does_not_answer_is_no_wish_to_stop(
    error: Exception, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_: object, timeout: float) -> bool:
        raise error

    monkeypatch.setattr(stop_flag.ray, "get", get)
    assert stop_flag.stop_requested(Flag()) == stops


@pytest.mark.parametrize(
    ("given", "joins"), [(None, "local"), ("", "local"), ("auto", "auto"), ("h:6379", "h:6379")]
)
def test_a_cluster_is_joined_only_by_its_address(
    given: str | None, joins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def init(**words: Any) -> None:
        told = words.get("runtime_env", {}).get("env_vars", {})
        seen.append(words | {"inherited": {**os.environ}, "given": told})

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection.socket, "create_connection", lambda *_: nullcontext())
    monkeypatch.setattr(connection, "_require_answer", lambda address: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    before = dict(os.environ)
    with connection.cluster() as (folder, _):
        assert folder.is_dir()
    assert seen[0]["address"] == joins
    assert ("_temp_dir" in seen[0]) == (joins == "local")
    assert seen[0].get("num_cpus") == (num_cores() if joins == "local" else None)
    # Processes of Ray that start here inherit what those of another cluster are given.
    variables = seen[0]["inherited" if joins == "local" else "given"]
    assert connection.ENVIRONMENT.items() <= variables.items()
    assert ("runtime_env" in seen[0]) == (joins != "local")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ray.exceptions.ActorDiedError(), "The actor died unexpectedly"),
        (ray.exceptions.GetTimeoutError("no answer"), "no answer"),
    ],
)
def test_a_gang_that_dies_while_it_starts_is_a_gang_that_failed(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was started of it is ended."""

    def get(answer: object, timeout: float) -> object:
        raise error

    killed: list[Any] = []
    table = {"bundles_to_node_id": {0: "here", 1: "here"}}
    monkeypatch.setattr(gang, "get_current_placement_group", lambda: "group")
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group: table)
    monkeypatch.setattr(
        gang, "_start", lambda *_: SimpleNamespace(open_store=SimpleNamespace(remote=lambda: "its"))
    )
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", killed.append)
    with pytest.raises(GangFailed, match=f"^rank 0 died while it started: {why}"):
        gang.run_gang_on_ray(lambda: None, (), 2, Parent(lambda message: None, 1.0))
    assert len(killed) == 2


@pytest.mark.parametrize("joins", [False, True])
def test_ray_that_does_not_start_or_answer_is_one_line_at_once(
    joins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("The current node timed out\nduring startup")

    where, why = "here", "timed out during startup"
    monkeypatch.setattr(connection.ray, "init", init)
    if joins:
        with socket.create_server(("127.0.0.1", 0)) as held:
            address = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        where, why = f"RAY_ADDRESS={address}", "refused; correct RAY_ADDRESS, or unset it"
    assert main(small_sweep.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")) == 1
    printed = capsys.readouterr().err
    assert printed.count("it is started once more\n") == (not joins)
    assert printed.count("\n") == 1 + (not joins)
    assert f"Ray does not start or answer ({where})" in printed
    assert why in printed


def test_what_listens_and_is_no_ray_ends_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "CONNECT_WITHIN", 5.0)  # it takes a second to ask
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        assert main(small_sweep.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "no answer within 5 s; correct RAY_ADDRESS, or unset it" in printed


def test_nobody_waits_for_a_report_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes when the cluster has started."""
    words = stopped(tmp_path, monkeypatch, lambda: None)
    assert main(words) == 143
    printed = capsys.readouterr().out.splitlines()
    assert "trials to go" in printed[-2]
    assert printed[-1].endswith(f"pipegap report results={tmp_path / 'results'} out=report")
    assert not (tmp_path / "results" / "reports").exists()


@pytest.mark.parametrize("address", ["", "local"])
def test_a_cluster_of_our_own_is_the_same_however_it_is_said(address: str) -> None:
    """It listens on loopback, and variables that Tune no longer knows do not end it."""
    asks = "import os, pipegap.sweeps; print(*sorted(n for n in os.environ if n in os.sys.argv))"
    names = ["RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "TUNE_RESULT_DIR"]
    environment = {**os.environ, "RAY_ADDRESS": address, "TUNE_RESULT_DIR": "/anywhere"}
    found = python("-c", asks, *names, env=environment)
    assert found.stdout.split() == ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]


def test_a_wish_to_stop_while_ray_starts_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets a handler of its own, which ends the process with code 15 and without a word."""

    def init(**_: object) -> None:
        ray._private.utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    with connection.cluster() as (_, asked_to_stop):
        assert asked_to_stop()


def test_what_is_left_is_priced_by_what_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_one() -> None:
        [first, *_] = all_planned(plan_sweeps(parse_request(words)))
        leave_finished(first.folder, first.config, tokens_per_second=1000.0)

    words = stopped(tmp_path, monkeypatch, finish_one)
    assert main(words) == 143
    record = json.loads((tmp_path / "results" / "sweeps" / "main-micro.json").read_text())
    prices = [trial["seconds"] for trial in record["trials"].values()]
    assert any(seconds is not None for seconds in prices)


def stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> list[str]:
    """The words of a sweep whose cluster is a stand-in: as soon as it has started, `meanwhile`
    happens and the driver is asked to stop."""

    def ask(_: Path) -> None:
        meanwhile()
        os.kill(os.getpid(), signal.SIGTERM)

    def init(**_: object) -> None:
        pass

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection, "require_seen_by_nodes", ask)
    words = small_sweep.overrides(folder, "sweep=main,momentum", "scale=micro", "seeds=[0]")
    return [word for word in words if not word.startswith("optimizer")]


# Drivers that share a store: each trial is offered once, and those of a dead driver again.


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
    words = small_sweep.overrides(tmp_path, "sweep=main", "seeds=[0,1]", "grid.optimizer=[adamw]")
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


# The first updates before a sweep pass, and it begins; test_clusters.py has a failure.

SWEEP = ("sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", "advice=null")
GANG = ("runner=pipelined", "pipeline.num_stages=2", "num_threads=1")


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = small_sweep.overrides(folder, "num_updates=8", *more)
    return python("-m", "pipegap", "sweep", *SWEEP, "first_trial=true", *words)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), GANG])
def test_the_sweep_begins_after_its_first_updates(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    [verdict] = [line for line in lines if line.startswith("first     completed; ")]
    assert "the same bits" in verdict
    first = next(i for i, line in enumerate(lines) if line.startswith("1/3 "))
    assert lines.index(verdict) < first
    assert not [*(tmp_path / "results").glob("*first-trial*")]
    assert len([*(tmp_path / "results" / "trials").iterdir()]) == 3, "it is no trial of the store"


# What a worker tells its driver of a trial in an object store.

Told = list[dict[str, Any]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    rows: Told = []
    monkeypatch.setattr(driver.tune, "report", rows.append)
    monkeypatch.setattr(driver, "stop_requested", lambda flag: False)
    return rows


@pytest.fixture
def store(server: Bucket) -> Iterator[BucketStore]:
    """With this process as its driver."""
    made = BucketStore(URL)
    with made.driven():
        yield made


def train(store: BucketStore, folder: Path, *words: str) -> Trial:
    config = small_sweep.config(folder, f"results={store.folder}", *words)
    trial = Trial("sync", config, plan_trial(config))
    driver._train({"trial": driver._payload(trial, [])}, None, tracker.take({}), store)
    return trial


def test_a_trial_is_trained_once(store: BucketStore, told: Told, tmp_path: Path) -> None:
    trial = train(store, tmp_path)
    train(store, tmp_path)
    first, second = (row for row in told if row["status"] != Status.RUNNING)
    assert (first["status"], first["num_done"]) == (Status.COMPLETED, 12)
    assert {**first, "warm": second["warm"]} == second  # the second one made no update
    store.pull()
    assert [path.name for path in trial.folder.glob("attempt-*")] == ["attempt-000001.json"]


def test_a_trial_of_a_driver_that_was_taken_over_is_left_to_the_next(
    server: Bucket, store: BucketStore, told: Told, tmp_path: Path
) -> None:
    server.write("driver.json", b'{"writer": "the next"}')
    train(store, tmp_path)
    assert told[-1]["status"] == Status.ELSEWHERE


def test_a_store_that_is_away_is_no_failure(
    server: Bucket, store: BucketStore, told: Told, tmp_path: Path
) -> None:
    server.fault = lambda method, key: "away"
    train(store, tmp_path)
    assert told[-1]["status"] == Status.ELSEWHERE


def test_what_no_attempt_can_mend_is_recorded(
    store: BucketStore, told: Told, tmp_path: Path
) -> None:
    trial = train(store, tmp_path, f"resume_from={tmp_path / 'checkpoint-1.pt'}")
    assert told[-1]["status"] == Status.FAILED
    store.pull()
    result = read_result(trial.folder)
    assert result is not None
    assert "resume_from" in result["error"]
    died = {trial.plan.trial_id: RuntimeError("killed")}
    driver._record_deaths([trial], died, store)
    assert read_result(trial.folder) == result


def test_a_trial_whose_folder_is_damaged_is_told_to_have_failed(
    server: Bucket, store: BucketStore, told: Told, tmp_path: Path
) -> None:
    """Whoever asked for it had seen it whole. Nothing can be recorded."""
    trial = train(store, tmp_path)
    folder = f"trials/{trial.trial_id}"
    server.remove(f"{folder}/result.json")
    server.write(f"{folder}/trial_id", b"\xff")
    train(store, tmp_path)
    assert told[-1]["status"] == Status.FAILED
    assert "trial_id: names no trial" in str(told[-1]["error"])
