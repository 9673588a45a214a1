"""What a worker tells its driver of a trial in an object store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.cluster import driver
from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.tracking import choice
from pipegap.trainer.base.status import Status
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.store.opened import BucketStore
from tests.support import small
from tests.support.bucket import URL, Bucket

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
    config = small.config(folder, f"results={store.folder}", *words)
    trial = Trial("sync", config, plan_trial(config))
    driver._train({"trial": driver._payload(trial, [])}, None, choice.take({}), store)
    return trial


def test_a_trial_is_trained_once(
    server: Bucket, store: BucketStore, told: Told, tmp_path: Path
) -> None:
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
    server: Bucket, store: BucketStore, told: Told, tmp_path: Path
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
