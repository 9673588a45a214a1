"""trackio shows what metrics.jsonl holds, from a store on this machine alone."""

import json
import os
import socket
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.tracking import trackio_tracker
from pipegap.sweeps.tracking.tracker import numbers
from pipegap.trainer.base.errors import Stopped
from tests.support import small, trials
from tests.support.markdown import ROOT
from tests.support.tracked import chosen, folder, plain, rows, tracked, untimed

pytestmark = pytest.mark.slow
OWN = ROOT / ".venv/trackio/bin/python"
HERE = find_spec("trackio") is not None
needs_trackio = pytest.mark.skipif(not HERE, reason="runs in the environment of `make trackio`")


@pytest.mark.skipif(HERE, reason="the other tests run here")
def test_trackio_in_an_environment_of_its_own() -> None:
    """It wants another pillow than ours."""
    if not OWN.exists():
        pytest.skip("no trackio: make trackio")
    words = [OWN, "-m", "pytest", "-m", "slow", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run([*words, __file__], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout


def shown(run: Any) -> list[dict[str, float]]:
    """Rows of a run of trackio's, as its own dashboard reads them."""
    from trackio.sqlite_storage import SQLiteStorage

    logs = SQLiteStorage.get_logs(run.project, run.name, run_id=run.id)
    assert [log.pop("step") for log in logs] == [log["update"] for log in logs]
    return [{key: log[key] for key in log if key != "timestamp"} for log in logs]


@needs_trackio
def test_trackio_holds_what_metrics_jsonl_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each update once, though the second attempt repeats some; nothing goes to the network, or
    lies outside the store, not even with a token of Hugging Face."""

    def refuse(*_: object) -> None:
        raise AssertionError("nobody is to be asked")

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_test")
    monkeypatch.setattr(trackio_tracker, "WRITE_EVERY", 0)  # the end finds every row written
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    config = small.config(tmp_path)
    with pytest.raises(Stopped):
        tracked(config, chosen("tracking=trackio"), stop_after=7)
    for path in folder(config).glob("checkpoint*"):
        path.unlink()
    tracker = tracked(config, chosen("tracking=trackio"), sweeps=["main-micro", "other"])
    assert tracker.trouble is None
    assert untimed(config) == plain()
    assert [t.name for t in threading.enumerate()] == ["MainThread"]
    assert capfd.readouterr() == ("", "")
    assert [*home.rglob("*")] == []
    store = tmp_path / "results/tracking/trackio"
    assert {path.name for path in store.iterdir()} == {"pipegap.db", "pipegap.lock"}
    import trackio

    [run] = trackio.Api().runs("pipegap")
    assert (run.id, run.name) == (folder(config).name, "adamw clip_norm=1 sync seed 0")
    expected = [trials.untimed(dict(numbers(row))) for row in rows(config)]
    assert [trials.untimed(row) for row in shown(run)] == expected
    asked = json.loads((folder(config) / "config.json").read_text())
    assert {key: run.config[key] for key in asked} == asked
    assert run.config["result"]["status"] == "completed"
    assert run.config["choice"]["sweeps"] == ["main-micro", "other"]


@needs_trackio
def test_trials_of_a_sweep_share_the_database(tmp_path: Path) -> None:
    """Which is another process's than the test's: it wrote to another store."""
    words = ["sweep=momentum", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]"]
    words += ["grid.optimizer.momentum=[0.9]", "tracking=trackio", "tracking.project=mine"]
    command = [sys.executable, "-m", "pipegap", "sweep", *words, *small.overrides(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    store = tmp_path / "results/tracking/trackio"
    read = "import json, trackio; from tests.sweeps.tracking.test_trackio import shown; "
    read += "print(json.dumps({run.id: shown(run) for run in trackio.Api().runs('mine')}))"
    environment = {**os.environ, "TRACKIO_DIR": str(store)}
    found = subprocess.run(
        [sys.executable, "-c", read], env=environment, check=True, capture_output=True, text=True
    )
    expected = {}
    for metrics in tmp_path.glob("results/trials/*/metrics.jsonl"):
        lines = map(json.loads, metrics.read_text().splitlines())
        expected[metrics.parent.name] = [dict(numbers(row)) for row in lines]
    assert len(expected) == 2
    assert json.loads(found.stdout) == expected
