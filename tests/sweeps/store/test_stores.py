"""One suite for both kinds of store, a folder and an object store: what sweeps ask of each.

An object store is one in memory, or of a server that this project did not write.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from pipegap import analysis
from pipegap.sweeps.commands.rerun import recorded
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.lease import STALE_AFTER, Held
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.store.files import FileStore, require_writable
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.store import SweepStore, TrialState
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.bucket import URL
from tests.support.stored import after, run, trial_of
from tests.support.trials import rows


@pytest.fixture(params=["folder", "server", "moto_server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SweepStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "results"))
    request.getfixturevalue(request.param)
    return open_store(URL)


@pytest.fixture
def trial(store: SweepStore, tmp_path: Path) -> Trial:
    return trial_of(store, tmp_path)


def test_a_trial_runs_stops_goes_on_and_is_read(
    store: SweepStore, trial: Trial, tmp_path: Path
) -> None:
    store.require_usable()
    known = {trial.plan.trial_id: trial}
    assert store.started(known) == set()
    with pytest.raises(Stopped):
        run(store, trial, after(1))
    store.pull()
    assert open_store(store.name).started(known) == {*known}
    assert store.state_of(trial) == TrialState.FREE
    assert [*analysis.load(store.folder)["status"]] == ["unfinished"]
    result = run(store, trial)
    assert store.state_of(trial) == TrialState.ENDED
    assert run(store, trial)["final_val_loss"] == result["final_val_loss"]
    store.pull()
    [row] = analysis.load(store.folder).to_dict("records")
    assert (row["status"], row["final_val_loss"]) == ("completed", result["final_val_loss"])
    attempts = [lease.read(path) for path in lease.attempts(trial.folder)]
    assert [attempt["ended"] for attempt in attempts] == ["Stopped", "completed"]
    assert [attempt["attempt"] for attempt in result["attempts"]] == [1, 2]
    assert not [*trial.folder.glob("checkpoint-*")]
    whole = small.config(tmp_path, f"out={tmp_path / 'whole'}")
    assert run_trial(whole)["final_val_loss"] == result["final_val_loss"]
    assert rows(tmp_path / "whole") == rows(trial.folder)


def test_a_trial_that_runs_is_held(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "results"))
    trial, seen = trial_of(store, tmp_path), list[Any]()

    def look() -> bool:
        if not seen:
            with pytest.raises(Held):
                run(store, trial)
            seen.append(store.state_of(trial))
        return False

    run(store, trial, look)
    assert seen == [TrialState.HELD]


def test_a_failure_is_recorded_and_what_it_saved_is_kept(store: SweepStore, trial: Trial) -> None:
    calls = after(2)

    def fail() -> bool:
        if calls():
            raise OSError("a broken machine")
        return False

    with pytest.raises(OSError, match="a broken machine"):
        run(store, trial, fail)
    store.pull()
    result = read_result(trial.folder)
    assert result is not None
    assert result["status"] == "failed"
    assert store.state_of(trial) == TrialState.FREE
    [spare] = store.spare([trial.folder])
    assert spare.num_files == 1
    assert spare.num_bytes > 1000
    assert run(store, trial)["status"] == "completed"


def test_what_is_spare_is_deleted_and_nothing_else(store: SweepStore, trial: Trial) -> None:
    with pytest.raises(Stopped):
        run(store, trial, after(1))
    store.pull()
    [spare] = store.spare([trial.folder])
    spare.delete()
    assert [*store.spare([trial.folder])] == []
    assert run(store, trial)["status"] == "completed"


def test_a_finished_trial_runs_again_from_the_start(store: SweepStore, trial: Trial) -> None:
    first = run(store, trial)
    store.pull()
    again = recorded(trial.folder, "sync", trial.plan.trial_id, store.folder)
    assert again.folder == trial.folder.absolute()
    store.archive(again)()
    store.pull()
    assert read_result(trial.folder) == first
    restore = store.archive(again)
    store.pull()
    assert read_result(trial.folder) is None
    second = run(store, again)
    restore()
    assert (second["final_val_loss"], second["attempts"][0]["attempt"]) == (
        first["final_val_loss"],
        2,
    )


def test_records_and_reports_reach_others(store: SweepStore, tmp_path: Path) -> None:
    path = store.folder / "sweeps" / "main.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    store.push(path)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    store.pull()
    assert path.read_text() == "{}"


def test_another_machine_sees_a_probe(store: SweepStore) -> None:
    store.require_usable()
    with store.driven(), store.probe() as sees:
        assert sees()
    assert not sees()


def left(folder: Path, name: str, age: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_partial_records_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    records = tmp_path / "results" / "sweeps"
    old = left(records, ".main-micro.json.123.partial", 2 * STALE_AFTER)
    written_now = left(records, ".main-micro.json.456.partial", 0)
    record = left(records, "old.json", 2 * STALE_AFTER)
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")
    request = parse_request(words)
    now = Round.first(request, FileStore(request.results))
    sweep_record.write(now, now.sweeps)
    assert not old.exists()
    assert written_now.exists()
    assert record.exists()


def test_probes_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    old = left(tmp_path / "trials", ".probe-1", 2 * STALE_AFTER)
    written_now = left(tmp_path / "trials", ".probe-2", 0)
    require_writable(tmp_path)
    assert not old.exists()
    assert written_now.exists()
