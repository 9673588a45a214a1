"""What a worker tells its driver of a trial in an object store."""

from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.cluster import driver
from pipegap.sweeps.request.expand import Trial
from pipegap.sweeps.tracking import choice
from pipegap.trainer.base.status import Status
from pipegap.trainer.config.plan import plan_trial
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store.lease import RegisterLease
from pipegap.trainer.store.objects import ObjectStore
from tests.support import s3_server, small

Told = list[dict[str, Any]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    rows: Told = []
    monkeypatch.setattr(driver.tune, "report", rows.append)
    monkeypatch.setattr(driver, "stop_requested", lambda flag: False)
    return rows


@pytest.fixture
def store() -> ObjectStore:
    return ObjectStore(f"s3://{s3_server.BUCKET}/store")


def train(store: ObjectStore, folder: Path, *words: str) -> Trial:
    config = small.config(folder, f"results={store.folder}", *words)
    trial = Trial("sync", config, plan_trial(config))
    driver._train({"trial": driver._payload(trial, [])}, None, choice.take({}), store)
    return trial


def test_a_trial_is_trained_once(
    server: s3_server.ServedBucket, store: ObjectStore, told: Told, tmp_path: Path
) -> None:
    trial = train(store, tmp_path)
    train(store, tmp_path)
    first, second = (row for row in told if row["status"] != Status.RUNNING)
    assert (first["status"], first["num_done"]) == (Status.COMPLETED, 12)
    assert {**first, "warm": second["warm"]} == second  # the second one made no update
    store.pull()
    assert [path.name for path in trial.folder.glob("attempt-*")] == ["attempt-000001.json"]


def test_a_trial_that_another_machine_has_is_left_to_it(
    server: s3_server.ServedBucket, store: ObjectStore, told: Told, tmp_path: Path
) -> None:
    config = small.config(tmp_path, f"results={store.folder}")
    RegisterLease(requests.BucketClient(store.name), None, plan_trial(config).trial_id)
    train(store, tmp_path)
    assert told[-1]["status"] == Status.ELSEWHERE


def test_a_store_that_is_away_is_no_failure(
    server: s3_server.ServedBucket, store: ObjectStore, told: Told, tmp_path: Path
) -> None:
    server.fault = lambda method, key: "503"
    train(store, tmp_path)
    assert told[-1]["status"] == Status.ELSEWHERE


def test_what_no_attempt_can_mend_is_recorded(
    server: s3_server.ServedBucket, store: ObjectStore, told: Told, tmp_path: Path
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
