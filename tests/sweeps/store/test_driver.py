"""Who drives a bucket's prefix: one living driver, whatever the network and clocks do."""

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput, LeaseLost, Stopped
from pipegap.trainer.store import driver
from pipegap.trainer.store.bucket import BucketClient, StoreAway
from pipegap.trainer.store.driver import KEY, Written, driving
from pipegap.trainer.store.store import SweepStore
from tests.support import small_sweep
from tests.support.buckets import URL, Bucket
from tests.support.trials import after, run

Facts = dict[str, object]
ELSEWHERE: Facts = {"host": "node7", "pid": 12, "machine": "another", "started_at": 0}
HELD = "process 12 on node7 drives this prefix since 1970-01-01 00:00 UTC"


def is_said(server: Bucket, **facts: object) -> None:
    """Somebody said this of who drives."""
    server.write(KEY, json.dumps({**ELSEWHERE, "writer": "x", **facts}).encode())


def lives(server: Bucket) -> None:
    """Somebody drives, whose heartbeat has gone on at each look."""
    beats = iter(range(10**6))

    def beat(method: str, key: str) -> None:
        if method == "get" and key == KEY:
            is_said(server, beat=next(beats))

    is_said(server)
    server.fault = beat


def said(server: Bucket) -> Facts:
    facts: Facts = json.loads(server.objects[KEY])
    return facts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "POLL_EVERY", 0.02)
    monkeypatch.setattr(driver, "STALE_AFTER", 1.0)


def test_a_prefix_is_driven_and_given_back(server: Bucket) -> None:
    for _ in range(2):
        with driving(BucketClient(URL)) as token:
            assert (said(server)["writer"], "ended" in said(server)) == (token, False)
            assert driver.drives(BucketClient(URL), token)
        assert "ended" in said(server)
        assert not driver.drives(BucketClient(URL), token)
    assert [*server.objects] == [KEY]


def test_of_many_that_want_a_prefix_at_once_one_gets_it(
    server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "STALE_AFTER", 1e9)  # a sign of life is enough
    got: list[str] = []
    start, end = threading.Barrier(8), threading.Barrier(8)

    def want() -> None:
        own = BucketClient(URL)
        start.wait()
        with suppress(BadInput), driving(own) as token:
            got.append(token)
            end.wait()
            return
        end.wait()

    threads = [threading.Thread(target=want) for _ in range(8)]
    beats = iter(range(10**6))

    def answer(method: str, key: str) -> None:
        if method == "get" and got and key == KEY:  # as the holder's heartbeat would
            is_said(server, writer=got[0], beat=next(beats))

    server.fault = answer
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_a_second_driver_is_refused_in_a_line(
    server: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "STALE_AFTER", 1e9)  # a sign of life is enough
    lives(server)
    words = small_sweep.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")
    assert sweeps([*(word for word in words if "results=" not in word), f"results={URL}"]) == 2
    line = capsys.readouterr().err
    says = f"results={URL}: {HELD}: wait for its end, or give another prefix\n"
    assert line == f"pipegap sweep: {says}"
    assert [*server.objects] == [KEY], "it has written nothing"


@pytest.mark.parametrize("skew", [-1e6, 0.0, 1e6], ids=["behind", "same", "ahead"])
def test_a_prefix_is_stale_by_the_servers_clock_alone(
    server: Bucket, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    is_said(server)
    began = time.monotonic()
    with driving(BucketClient(URL)):
        assert 0.9 < time.monotonic() - began < 30
        assert abs(float(str(said(server)["started_at"])) - time.time()) < 30
    is_said(server)
    time.sleep(1.1)
    monkeypatch.delattr(time, "sleep")  # it is stale already: nobody waits
    with driving(BucketClient(URL)):
        pass


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"pid": "x"}', b"{}"])
def test_a_damaged_object_is_of_nobody_who_lives(server: Bucket, content: bytes) -> None:
    server.write(KEY, content)
    with driving(BucketClient(URL)) as token:
        assert said(server)["writer"] == token


def test_a_driver_that_is_known_to_be_dead_is_not_waited_for(
    server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "STALE_AFTER", 1e9)
    is_said(server, **{**driver.new_attempt(1), "process_started": "0"})
    server.requests.clear()
    with driving(BucketClient(URL)):
        assert server.requests == {"get": 2, "put": 3}, "read, taken; and refused, twice"


def test_who_was_taken_over_stops_and_writes_nothing_more(
    server: Bucket, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "HEARTBEAT_EVERY", 0.02)
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        with driving(BucketClient(URL)) as token:
            is_said(server, writer="heir")
            assert stopped.wait(30)
            assert not driver.drives(BucketClient(URL), token)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (said(server)["writer"], "ended" in said(server)) == ("heir", False)
    assert f"{URL} was taken over by another driver" in capsys.readouterr().err


def test_a_driver_without_network_goes_on_until_another_takes_over(
    server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "HEARTBEAT_EVERY", 0.02)
    with driving(BucketClient(URL)) as token:
        server.fault = lambda method, key: "away"
        time.sleep(0.2)
        server.fault = lambda method, key: None
        beat = said(server)["beat"]
        deadline = time.monotonic() + 30
        while said(server)["beat"] == beat:
            assert time.monotonic() < deadline
        assert driver.drives(BucketClient(URL), token)


def test_a_provider_without_conditional_writes_is_refused(
    server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = BucketClient.write
    monkeypatch.setattr(
        BucketClient,
        "write",
        lambda self, key, content, before: (
            self.upload(key, content) or self.read(key).version
            if key == KEY
            else asked(self, key, content, before)
        ),
    )
    with pytest.raises(BadInput, match="conditional writes"), driving(BucketClient(URL)):
        pass


def test_a_store_that_is_driven_is_not_pruned(
    objects: SweepStore, trial: Trial, server: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped):
        run(objects, trial, after(1))
    before = {*server.objects}
    lives(server)
    assert sweeps(["prune", f"results={URL}", "checkpoints=all"]) == 2
    assert HELD in capsys.readouterr().err
    assert {*server.objects} == before


def once(fault: str) -> Callable[[str, str], str | None]:
    """The next write fails."""
    left = [fault]
    return lambda method, key: left.pop() if method == "put" and left else None


@pytest.mark.parametrize("fault", ["lost", "away"])
def test_an_answer_that_is_lost_is_found_out(server: Bucket, fault: str) -> None:
    """The write may have had its effect: then the process must see that it was its own."""
    written = Written(BucketClient(URL), "a", None)
    for number in range(3):
        server.fault = once(fault)
        with pytest.raises(StoreAway):
            written.write({"is": "lost"})
        written.write({"is": number})
        assert json.loads(server.objects["a"])["is"] == number
    written.write({"is": "last"})
    assert json.loads(server.objects["a"])["is"] == "last"


def test_what_a_provider_has_repeated_is_written_once(
    server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer was lost is sent again, and finds the object of the first."""
    asked = BucketClient.write

    def twice(self: BucketClient, *args: object) -> object:
        asked(self, *args)
        return asked(self, *args)

    monkeypatch.setattr(BucketClient, "write", twice)
    written = Written(BucketClient(URL), "a", None)
    for number in range(3):
        written.write({"is": number})
        assert json.loads(server.objects["a"])["is"] == number


@pytest.mark.parametrize("content", [b"{}", b"", b'{"writer": "x"}', None])
def test_what_another_process_wrote_stays(server: Bucket, content: bytes | None) -> None:
    written = Written(BucketClient(URL), "a", None)
    written.write({})
    server.remove("a") if content is None else server.write("a", content)
    for _ in range(2):
        with pytest.raises(LeaseLost):
            written.write({})
    assert server.objects.get("a") == content


@pytest.mark.parametrize("skew", [-1e6, 0.0, 1e6], ids=["behind", "same", "ahead"])
def test_a_copy_tells_whose_trials_run(
    objects: SweepStore, trial: Trial, server: Bucket, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """An attempt's object is written at each heartbeat: its age is the server's clock's."""
    with pytest.raises(Stopped):
        run(objects, trial, after(1))
    key = f"trials/{trial.trial_id}/attempt-000001.json"
    attempt = json.loads(server.objects[key])
    running = {name: attempt[name] for name in attempt if not name.startswith("ended")}
    server.write(key, json.dumps({**running, "machine": "another"}).encode())
    time_here, time_there = time.time, BucketClient.now
    monkeypatch.setattr(time, "time", lambda: time_here() + skew)
    objects.pull()
    path = trial.folder / "attempt-000001.json"
    assert time.time() - path.stat().st_mtime == pytest.approx(0, abs=30)
    monkeypatch.setattr(BucketClient, "now", lambda self: time_there(self) + 40)
    server.write(key, server.objects[key])
    objects.pull()
    assert time.time() - path.stat().st_mtime == pytest.approx(40, abs=20)
