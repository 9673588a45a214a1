"""What only an object store can do wrong."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import LeaseLost, Stopped
from pipegap.trainer.folder.wellformed import read_result
from pipegap.trainer.store import working
from pipegap.trainer.store.bucket import BucketClient, StoreAway
from pipegap.trainer.store.driver import KEY
from pipegap.trainer.store.opened import ObjectStore
from pipegap.trainer.store.register import see
from pipegap.trainer.store.store import SweepStore, TrialState
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.buckets import URL, Bucket
from tests.support.trials import after, rows, run, trial_of, work


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is uploaded all the time."""
    monkeypatch.setattr(working, "UPLOAD_EVERY", 0.01)


def of_trials(server: Bucket) -> list[str]:
    return [key for key in server.objects if key.startswith("trials/")]


def test_what_the_store_says_names_no_folder_of_a_machine(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: Bucket
) -> None:
    run(objects, trial)
    text = server.objects[f"registers/{trial.plan.trial_id}.json"].decode()
    config = json.loads(json.loads(text)["files"]["config.json"]["text"])
    assert (config["results"], config["out"]) == (URL, None)
    assert str(tmp_path / "cache") not in text
    assert len(of_trials(server)) == 1, "the rows alone"


@pytest.mark.usefixtures("often")
def test_a_killed_driver_costs_what_was_done_after_the_last_upload(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: Bucket
) -> None:
    """As a kill leaves it: no end, uploads that no register names, a folder full of files."""
    copies: dict[str, bytes] = {}

    def kill() -> bool:
        if checkpoints(server) and not copies:
            copies.update(server.objects)
        return False

    run(objects, trial, slowly(kill))
    assert copies
    for key in (KEY, f"registers/{trial.plan.trial_id}.json"):  # of processes that are dead
        copies[key] = dead(copies[key])
    server.restore(copies)
    server.write(f"trials/{trial.plan.trial_id}/000001/999999/in_vain.pt", b"x")
    result = run(ObjectStore(URL), trial)
    assert [attempt["attempt"] for attempt in result["attempts"]] in ([1, 2], [2])
    objects.pull()
    whole = small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}")
    assert run_trial(whole)["final_val_loss"] == result["final_val_loss"]
    assert rows(tmp_path / "whole") == rows(trial.folder)
    assert len(of_trials(server)) == 1, "the rows alone"
    assert not [*(tmp_path / "cache").rglob("work/trial-*")]


AT_WORK = """
import sys
import time
from pathlib import Path
from pipegap.trainer.store import working
from pipegap.trainer.store.opened import ObjectStore
from tests.support.trials import run, trial_of

working.UPLOAD_EVERY = 0.01
store = ObjectStore(sys.argv[1])
run(store, trial_of(store, Path(sys.argv[2])), lambda: time.sleep(0.5))
"""


@pytest.mark.usefixtures("moto_server")
def test_the_next_driver_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    store, bucket = ObjectStore(URL), BucketClient(URL)
    trial = trial_of(store, tmp_path)
    with subprocess.Popen([sys.executable, "-c", AT_WORK, URL, str(tmp_path)]) as killed:
        while not any("checkpoint-" in meta.key for meta in bucket.list("trials")):
            assert killed.poll() is None
            time.sleep(0.05)
        killed.kill()
    assert "ended" not in json.loads(bucket.read(KEY).content)
    result = run(store, trial)
    assert [attempt["attempt"] for attempt in result["attempts"]] in ([1, 2], [2])
    store.pull()
    run_trial(small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}"))
    assert rows(tmp_path / "whole") == rows(trial.folder)
    assert len(bucket.list("trials")) == 1, "the rows alone"


def dead(content: bytes) -> bytes:
    """As if the process that it tells of had ended."""
    return content.replace(b'"process_started": "', b'"process_started": "before ')


def checkpoints(server: Bucket) -> dict[str, bytes]:
    return {key: content for key, content in server.objects.items() if "checkpoint-" in key}


def slowly(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Gives the thread that uploads its turn between two updates."""

    def asks() -> bool:
        time.sleep(0.1)
        return ask()

    return asks


def test_rows_that_grew_by_little_come_with_a_checkpoint(server: Bucket, tmp_path: Path) -> None:
    """A checkpoint knows its rows: without them it would be no use to who goes on."""
    bucket, folder = BucketClient(URL), tmp_path / "work"
    folder.mkdir()
    at_work = working.WorkingFolder(bucket, see(bucket, "a"), folder, {}, "")
    content = b"many rows\n" * 100

    def uploaded() -> bytes:
        at_work._push_new()
        return server.objects[see(bucket, "a").register.files["metrics.jsonl"]["key"]]

    (folder / "metrics.jsonl").write_bytes(content)
    assert uploaded() == content
    (folder / "metrics.jsonl").write_bytes(content + b"one more\n")
    assert uploaded() == content
    (folder / "checkpoint-000100.pt").write_bytes(b"weights")
    assert uploaded() == content + b"one more\n"
    (folder / "metrics.jsonl").write_bytes(content * 2)
    assert uploaded() == content * 2, "that is a lot"


def test_what_was_saved_outlives_an_attempt_that_could_not_fetch_it(
    objects: SweepStore, trial: Trial, server: Bucket
) -> None:
    with pytest.raises(Stopped):
        run(objects, trial, after(1))
    before = checkpoints(server)
    assert before
    server.fault = lambda method, key: "away" if "checkpoint-" in key else None
    with pytest.raises(StoreAway):
        run(objects, trial)
    server.fault = lambda method, key: None
    assert checkpoints(server) == before
    assert run(objects, trial)["attempts"][0]["attempt"] == 1


@pytest.mark.usefixtures("often")
def test_a_stale_worker_changes_nothing_of_what_the_next_one_makes(
    objects: SweepStore, trial: Trial, server: Bucket, tmp_path: Path
) -> None:
    """The driver was taken over while its worker was cut off: it still trains, and uploads."""
    heirs: list[object] = []

    def taken_over() -> bool:
        if not heirs and checkpoints(server):
            heirs.append(None)
            now = server.objects
            server.write(
                KEY, now[KEY].replace(b'"process_started": "', b'"process_started": "dead')
            )
            server.fault = lambda method, key: None
            heirs[0] = run(ObjectStore(URL), trial)
        return False

    with objects.driven(), pytest.raises(LeaseLost):
        work(objects, trial, slowly(taken_over))
    objects.pull()
    assert read_result(trial.folder) == heirs[0]
    whole = small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}")
    run_trial(whole)
    assert rows(tmp_path / "whole") == rows(trial.folder)
    with objects.driven():
        for spare in objects.spare([trial.folder]):
            spare.delete()
    assert len(of_trials(server)) == 1, "what it uploaded in vain is pruned"


def test_a_worker_whose_driver_was_taken_over_begins_no_trial(
    objects: SweepStore, trial: Trial, server: Bucket
) -> None:
    with objects.driven():
        server.write(KEY, b'{"writer": "the heir"}')
        before = server.objects
        with pytest.raises(LeaseLost, match="has another driver"):
            work(objects, trial)
        assert server.objects == before


@pytest.mark.usefixtures("often")
def test_a_network_that_is_cut_for_long_costs_no_work(
    objects: SweepStore, trial: Trial, server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "TRY_EVERY", 0.01)
    failed = iter(range(20))

    def cut() -> bool:
        server.fault = lambda method, key: None if next(failed, None) is None else "away"
        return False

    result = run(objects, trial, slowly(cut))
    assert [attempt["attempt"] for attempt in result["attempts"]] == [1]
    objects.pull()
    assert read_result(trial.folder) == result


def test_a_store_that_stays_away_ends_the_trial(
    objects: SweepStore, trial: Trial, server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "TRY_EVERY", 0.01)
    monkeypatch.setattr(working, "TRY_FOR", 0.1)

    def cut() -> bool:
        server.fault = lambda method, key: "away"
        return False

    with objects.driven():
        with pytest.raises(StoreAway):
            work(objects, trial, cut)
        server.fault = lambda method, key: None
        assert work(objects, trial)["status"] == "completed"


def test_a_long_result_ends_a_trial_too(
    objects: SweepStore, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It grows with the number of attempts."""
    monkeypatch.setattr(working, "SMALL", 1)
    first = run(objects, trial)
    assert objects.state_of(trial) == TrialState.ENDED
    assert run(objects, trial) == first


@pytest.mark.usefixtures("often")
def test_a_result_is_told_last(objects: SweepStore, trial: Trial) -> None:
    """With all that belongs to it: others take its trial for ended."""
    with objects.driven(), objects.running(trial.config, trial.plan.trial_id) as running:
        out = Path(running.config["out"])
        (out / "result.json").write_text('{"status": "completed"}')
        (out / "attempt-000001.json").write_text('{"attempt": 1, "ended": "completed"}')
        (out / "after.json").write_text("{}")
        deadline = time.monotonic() + 60
        while not (trial.folder / "after.json").exists():
            assert time.monotonic() < deadline
            objects.pull()
        assert not (trial.folder / "result.json").exists()
        assert objects.state_of(trial) == TrialState.FREE
    assert objects.state_of(trial) == TrialState.ENDED


def test_a_trial_costs_few_requests(objects: SweepStore, trial: Trial, server: Bucket) -> None:
    with objects.driven():
        server.requests.clear()
        work(objects, trial)
    # The driver and the register are read; the register is taken and given back; the rows. And
    # the driver has ended.
    assert server.requests == {"get": 2, "put": 3 + 1}
