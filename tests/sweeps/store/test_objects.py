"""What only an object store can do wrong."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import LeaseLost, Stopped
from pipegap.trainer.folder.lease import Held
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.store import lease as leases
from pipegap.trainer.store import provider, working
from pipegap.trainer.store.bucket import BucketClient, StoreAway
from pipegap.trainer.store.store import SweepStore, TrialState
from pipegap.trainer.trial import run_trial
from tests.support import s3_server, small
from tests.support.stored import URL, after, run
from tests.support.trials import rows


def test_what_the_store_says_names_no_folder_of_a_machine(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: s3_server.ServedBucket
) -> None:
    run(objects, trial)
    [key] = [key for key in server.objects if "registers/" in key]
    text = server.objects[key].content.decode()
    config = json.loads(json.loads(text)["files"]["config.json"]["text"])
    assert (config["results"], config["out"]) == (URL, None)
    assert str(tmp_path / "cache") not in text
    assert s3_server.credentials(0)["AWS_SECRET_ACCESS_KEY"] not in text
    assert sum("/trials/" in key for key in server.objects) == 1, "the rows alone"


def test_a_killed_process_costs_what_it_did_after_its_last_upload(
    objects: SweepStore,
    trial: Trial,
    tmp_path: Path,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a kill leaves it: no end, uploads that no register names, a folder full of files."""
    monkeypatch.setattr(working, "HEARTBEAT_EVERY", 0.01)
    copies = dict(server.objects)

    def kill() -> bool:
        if checkpoints(server) and not copies:
            copies.update(server.objects)
        return False

    run(objects, trial, slowly(kill))
    assert copies
    [key] = [key for key in copies if "registers/" in key]
    left = json.loads(copies[key].content)
    left["holder"]["process_started"] = "0"  # of a process that is dead
    server.objects.clear()
    server.objects.update(copies)
    server.write(key, json.dumps(left).encode())
    server.write("a/store/trials/" + trial.plan.trial_id + "/000001/999999/in_vain.pt", b"x")
    result = run(objects, trial)
    assert [attempt["attempt"] for attempt in result["attempts"]] in ([1, 2], [2])
    objects.pull()
    whole = small.config(tmp_path, f"out={tmp_path / 'whole'}")
    assert run_trial(whole)["final_val_loss"] == result["final_val_loss"]
    assert rows(tmp_path / "whole") == rows(trial.folder)
    assert sum("/trials/" in key for key in server.objects) == 1, "the rows alone"
    assert not [*(tmp_path / "cache").rglob("work/trial-*")]


def checkpoints(server: s3_server.ServedBucket) -> dict[str, bytes]:
    return {key: stored.content for key, stored in server.objects.items() if "checkpoint-" in key}


def slowly(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Gives the thread that uploads its turn between two updates."""

    def asks() -> bool:
        time.sleep(0.1)
        return ask()

    return asks


def test_rows_that_grew_by_little_come_with_a_checkpoint(
    server: s3_server.ServedBucket, tmp_path: Path
) -> None:
    """A checkpoint knows its rows: without them it would be no use to who goes on."""
    bucket, folder = BucketClient(URL), tmp_path / "work"
    folder.mkdir()
    at_work = working.WorkingFolder(bucket, leases.RegisterLease(bucket, None, "a"), folder, {})
    rows = b"many rows\n" * 100

    def uploaded() -> bytes:
        at_work._push_new()
        [(_, register)] = ((k, v) for k, v in server.objects.items() if "registers/" in k)
        key = json.loads(register.content)["files"]["metrics.jsonl"]["key"]
        return server.objects[f"a/store/{key}"].content

    (folder / "metrics.jsonl").write_bytes(rows)
    assert uploaded() == rows
    (folder / "metrics.jsonl").write_bytes(rows + b"one more\n")
    assert uploaded() == rows
    (folder / "checkpoint-000100.pt").write_bytes(b"weights")
    assert uploaded() == rows + b"one more\n"
    (folder / "metrics.jsonl").write_bytes(rows * 2)
    assert uploaded() == rows * 2, "that is a lot"


def test_what_was_saved_outlives_an_attempt_that_could_not_fetch_it(
    objects: SweepStore,
    trial: Trial,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Stopped):
        run(objects, trial, after(1))
    before = checkpoints(server)
    assert before
    monkeypatch.setattr(provider, "NUM_TRIES", 0)
    server.fault = lambda method, key: "503" if "checkpoint-" in key else None
    with pytest.raises(StoreAway):
        run(objects, trial)
    server.fault = lambda method, key: None
    assert checkpoints(server) == before
    assert run(objects, trial)["attempts"][0]["attempt"] == 1


def test_a_zombies_result_is_rejected(
    objects: SweepStore,
    trial: Trial,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heirs: list[object] = []

    def taken_over() -> bool:
        if not heirs:
            with monkeypatch.context() as patched:
                patched.setattr(leases, "is_dead", lambda holder: True)
                heirs.append(None)
                heirs[0] = run(objects, trial)
        return False

    with pytest.raises(LeaseLost):
        run(objects, trial, taken_over)
    objects.pull()
    assert read_result(trial.folder) == heirs[0]
    assert [*objects.spare([trial.folder])] == [], "it takes back what it uploaded"


def test_a_network_that_is_cut_for_long_ends_the_trial_and_loses_nothing(
    objects: SweepStore,
    trial: Trial,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cut() -> bool:
        server.fault = lambda method, key: "cut"
        return False

    monkeypatch.setattr(leases, "STOP_AFTER", 0.3)
    monkeypatch.setattr(provider, "NUM_TRIES", 0)
    with pytest.raises(LeaseLost):
        run(objects, trial, slowly(cut))
    server.fault = lambda method, key: None
    monkeypatch.setattr(leases, "STOP_AFTER", 60.0)
    with pytest.raises(Held):
        run(objects, trial)
    monkeypatch.setattr(leases, "STALE_AFTER", -1.0)
    monkeypatch.setattr(leases, "is_dead", lambda holder: False)
    assert run(objects, trial)["status"] == "completed"


def test_a_store_that_is_throttled_now_and_then_is_no_trouble(
    objects: SweepStore,
    trial: Trial,
    server: s3_server.ServedBucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(provider, "NUM_TRIES", 5)
    numbers = iter(range(10**6))
    server.fault = lambda method, key: "503" if next(numbers) % 3 == 0 else None
    run(objects, trial)
    objects.pull()
    assert read_result(trial.folder) is not None


def test_a_long_result_ends_a_trial_too(
    objects: SweepStore, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the number of attempts."""
    monkeypatch.setattr(working, "SMALL", 1)
    first = run(objects, trial)
    assert objects.state_of(trial) == TrialState.ENDED
    assert run(objects, trial) == first


def test_a_result_is_told_last(
    objects: SweepStore, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that belongs to it: others take its trial for ended."""
    monkeypatch.setattr(working, "HEARTBEAT_EVERY", 0.01)
    with objects.running(trial.config, trial.plan.trial_id) as running:
        out = Path(running.config["out"])
        (out / "result.json").write_text('{"status": "completed"}')
        (out / "attempt-000001.json").write_text('{"attempt": 1, "ended": "completed"}')
        (out / "after.json").write_text("{}")
        deadline = time.monotonic() + 60
        while not (trial.folder / "after.json").exists():
            assert time.monotonic() < deadline
            objects.pull()
        assert not (trial.folder / "result.json").exists()
        assert objects.state_of(trial) == TrialState.HELD
    assert objects.state_of(trial) == TrialState.ENDED


def test_a_trial_costs_few_requests(
    objects: SweepStore, trial: Trial, server: s3_server.ServedBucket
) -> None:
    run(objects, trial)
    assert server.requests == {"GET": 1, "PUT": 3}, "register: read, taken, given back; rows"
