"""Who runs a trial of an object store: exactly one process, whatever the network and clocks do."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder.lease import Held
from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store import lease as leases
from pipegap.trainer.store import provider, register
from pipegap.trainer.store.bucket import BucketClient, StoreAway
from pipegap.trainer.store.lease import RegisterLease, edit, is_free
from pipegap.trainer.store.objects import ObjectStore
from pipegap.trainer.store.register import see
from tests.support import s3_server

URL = f"s3://{s3_server.BUCKET}/some/prefix"
ID = "0123456789abcdef"


def held_by(monkeypatch: pytest.MonkeyPatch, **facts: str) -> None:
    """What is taken now is held by a process of which the store says these `facts`."""
    mine = leases.new_attempt
    monkeypatch.setattr(leases, "new_attempt", lambda n: {**mine(n), **facts})


def stored(server: s3_server.ServedBucket) -> dict:
    return json.loads(server.objects[f"some/prefix/{register.key(ID)}"].content)


def test_of_many_that_want_a_trial_at_once_one_gets_it(server: s3_server.ServedBucket) -> None:
    got: list[RegisterLease] = []
    start = threading.Barrier(8)

    def want() -> None:
        own = BucketClient(URL)
        start.wait()
        with suppress(Held):
            got.append(RegisterLease(own, None, ID))

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [lease] = got
    assert (stored(server)["attempt"], stored(server)["holder"]["attempt"]) == (1, 1)
    lease.swap(holder=None)
    assert stored(server)["holder"] is None


def test_who_was_taken_over_writes_nothing_more(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = BucketClient(URL)
    held_by(monkeypatch, machine="another")  # whose life cannot be seen
    zombie = RegisterLease(bucket, None, ID)
    assert not is_free(bucket, see(bucket, ID))
    monkeypatch.setattr(leases, "STALE_AFTER", -1.0)
    assert is_free(bucket, see(bucket, ID))
    heir = RegisterLease(bucket, see(bucket, ID), ID)
    with pytest.raises(LeaseLost):
        zombie.swap(files={"result.json": {"text": "{}"}})
    assert zombie.is_lost()
    heir.swap(files={"result.json": {"text": "[]"}})
    assert stored(server)["files"] == {"result.json": {"text": "[]"}}
    assert stored(server)["attempt"] == 2


@pytest.mark.parametrize("skew", [-1e6, 0.0, 1e6], ids=["behind", "same", "ahead"])
def test_a_trial_is_stale_by_the_servers_clock_alone(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    elapsed = 0.0
    server.clock = lambda: time.time() + skew + elapsed
    held_by(monkeypatch, machine="another")  # whose life cannot be seen
    RegisterLease(BucketClient(URL), None, ID)
    assert not is_free(BucketClient(URL), see(BucketClient(URL), ID))
    elapsed = leases.STALE_AFTER + 5
    assert is_free(BucketClient(URL), see(BucketClient(URL), ID))
    assert [key for key in server.objects if requests.CLOCK in key] == []


def test_a_copy_tells_the_age_of_a_heartbeat_by_the_servers_clock(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elapsed = 0.0
    server.clock = lambda: time.time() - 1e6 + elapsed
    held_by(monkeypatch, machine="another")
    RegisterLease(BucketClient(URL), None, ID)
    elapsed = 40.0
    ObjectStore(URL).pull()
    [attempt] = (tmp_path / "cache").rglob("attempt-*.json")
    assert time.time() - attempt.stat().st_mtime == pytest.approx(elapsed, abs=10)


def test_a_holder_that_is_known_to_be_dead_is_not_waited_for(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_by(monkeypatch, process_started="0")
    RegisterLease(BucketClient(URL), None, ID)
    before = server.requests.copy()
    assert is_free(BucketClient(URL), see(BucketClient(URL), ID))
    assert server.requests - before == {"GET": 1}


@pytest.mark.parametrize("fault", ["lost", "503", "cut"])
def test_an_answer_that_is_lost_is_found_out(server: s3_server.ServedBucket, fault: str) -> None:
    """The write may have had its effect: then the process must see that it was its own."""
    server.fault = once(fault)
    lease = RegisterLease(BucketClient(URL), None, ID)
    server.fault = once(fault)
    for _ in range(5):  # as holders do
        with suppress(StoreAway):
            lease.swap(files={"a": {"text": "b"}})
            break
    assert stored(server)["files"] == {"a": {"text": "b"}}
    assert stored(server)["attempt"] == 1
    assert not lease.is_lost()


def test_what_comes_after_a_write_of_unknown_end_is_written_too(
    server: s3_server.ServedBucket,
) -> None:
    lease = RegisterLease(BucketClient(URL), None, ID)
    puts: list[str] = []

    def lost_then_away(method: str, key: str) -> str | None:
        if method != "PUT":
            return "503" if puts else None
        puts.append(key)
        return "lost" if len(puts) == 1 else "503"

    server.fault = lost_then_away
    with pytest.raises(StoreAway):
        lease.swap(files={"a": {"text": "first"}})
    assert stored(server)["files"] == {"a": {"text": "first"}}
    server.fault = lambda method, key: None
    lease.swap(files={"a": {"text": "second"}})
    assert stored(server)["files"] == {"a": {"text": "second"}}


def test_an_edit_whose_answer_is_lost_is_made_once(server: s3_server.ServedBucket) -> None:
    RegisterLease(BucketClient(URL), None, ID).swap(holder=None)
    made: list[register.Register] = []

    def change(now: register.Register) -> register.Register:
        made.append(now)
        return now

    server.fault = once("lost")
    assert edit(BucketClient(URL), ID, change)
    assert len(made) == 1


def test_a_machine_that_has_just_started_asks_for_the_time(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.clock = lambda: 1e9
    monkeypatch.setattr(requests, "monotonic", lambda: 1.0)
    assert BucketClient(URL).now() == 1e9


def once(fault: str) -> Callable[[str, str], str | None]:
    """The next PUT fails."""
    left = [fault]
    return lambda method, key: left.pop() if method == "PUT" and left else None


def test_a_holder_without_network_counts_itself_out_before_others_may_take_over(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leases.STOP_AFTER < leases.STALE_AFTER
    monkeypatch.setattr(leases, "STOP_AFTER", 0.5)
    monkeypatch.setattr(leases, "HEARTBEAT_EVERY", 0.1)
    monkeypatch.setattr(leases, "POLL_EVERY", 0.05)
    monkeypatch.setattr(provider, "NUM_TRIES", 0)
    lease = RegisterLease(BucketClient(URL), None, ID)
    with lease.heartbeat():
        time.sleep(1.0)
        assert not lease.is_lost()
        assert stored(server)["beat"] > 3
        server.fault = lambda method, key: "cut"
        deadline = time.monotonic() + 20
        while not lease.is_lost():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    server.fault = lambda method, key: None
    before = stored(server)
    with pytest.raises(LeaseLost):
        lease.swap(holder=None)
    assert stored(server) == before


def test_no_heartbeat_follows_the_end(
    server: s3_server.ServedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_EVERY", 0.0)
    monkeypatch.setattr(leases, "POLL_EVERY", 0.01)
    lease = RegisterLease(BucketClient(URL), None, ID)
    with lease.heartbeat():
        lease.swap(holder=None)
        ended = stored(server)
        time.sleep(0.2)
    assert stored(server) == ended


def test_a_trial_that_runs_is_not_edited(server: s3_server.ServedBucket) -> None:
    bucket = BucketClient(URL)
    lease = RegisterLease(bucket, None, ID)
    assert not edit(bucket, ID, lambda now: now)
    lease.swap(holder=None, files={"a": {"text": "b"}})
    assert edit(bucket, ID, lambda now: register.Register(ID, now.attempt))
    assert stored(server)["files"] == {}
    assert not edit(bucket, "f" * 16, lambda now: now)
