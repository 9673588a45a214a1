"""A tracker that hangs, raises, is slow or has a bad key changes and holds up nothing."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipegap.sweeps.tracking import choice
from pipegap.sweeps.tracking.choice import Tracking
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.tracked import PATIENT, chosen, plain, runs, tracked, untimed

KEY = "0123456789abcdef0123456789abcdef01234567"


def misbehaving(kind: str, where: str, wait: float) -> Tracking:
    node = {"_target_": f"tests.support.trackers.{kind}", "where": where, "wait": wait}
    return choice.make_tracking(node)


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_hangs_is_left_alone(where: str, tmp_path: Path) -> None:
    """The trial ends while the tracker still hangs, and so does the next one's tracker."""
    config = small.config(tmp_path)
    assert tracked(config, misbehaving("Hangs", where, 0.1)).trouble == (
        "it was not done 0.1 s after the trial's end"
    )
    assert untimed(config) == plain()
    assert [t.name for t in threading.enumerate()].count("tracker") >= 1
    if where != "log":
        return
    other = small.config(tmp_path, "seed=1")
    assert tracked(other, chosen("tracking=tensorboard")).trouble is None


@pytest.mark.parametrize("where", ["start", "log", "finish"])
def test_a_tracker_that_raises_is_named_in_one_line(where: str, tmp_path: Path) -> None:
    config = small.config(tmp_path)
    tracker = tracked(config, misbehaving("Raises", where, PATIENT))
    assert tracker.trouble == f"SystemExit: no {where}"
    assert untimed(config) == plain()


def test_rows_that_a_slow_tracker_has_no_room_for_are_counted(tmp_path: Path) -> None:
    config = small.config(tmp_path)
    tracker = misbehaving("Hangs", "start", 0.0).of("id", "sync", config, sweeps=["main-micro"])
    with tracker:
        for update in range(choice.CAPACITY + 5):
            tracker.log({"update": update})
    assert tracker.trouble == "it is too slow: 10000 rows wait for it (5 rows were dropped)"


ALONE = """
import json, sys
sys.path[:0] = ["."]
from tests.support.tracked import chosen, tracked
print(tracked(json.load(sys.stdin), chosen("tracking=wandb", *sys.argv[1:])).trouble)
"""


def without_network(folder: Path) -> dict[str, str]:
    """An environment with a key, and nobody who listens where wandb's server should be."""
    changes = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(folder)}
    return {**os.environ, **changes}


def require_no_key(folder: Path, output: str) -> None:
    """In no file below the folder, and not in the output."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in output


@pytest.mark.parametrize(
    ("wait", "says"),
    [
        (PATIENT, "CommError"),
        pytest.param(0.0, "not done 0 s after the trial's end", marks=pytest.mark.slow),
    ],
)
def test_a_bad_key_without_network_neither_fails_the_trial_nor_keeps_its_process(
    wait: float, says: str, tmp_path: Path
) -> None:
    config = small.config(tmp_path)
    words = ["tracking.mode=online", f"tracking.wait={wait}", "tracking.init_timeout=1"]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words],
        input=json.dumps(config),
        env=without_network(tmp_path / "home"),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert says in done.stdout
    assert untimed(config) == plain()
    require_no_key(tmp_path, done.stdout + done.stderr)


@pytest.mark.slow
def test_a_sweep_whose_tracker_fails_says_so_once_and_is_as_without(tmp_path: Path) -> None:
    words = ["sweep=momentum", "scale=micro", "seeds=[0]"]
    words += ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "tracking=wandb"]
    words += ["tracking.mode=online", "tracking.init_timeout=1", f"tracking.wait={PATIENT}"]
    words += small.overrides(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pipegap", "sweep", *words],
        env=without_network(tmp_path / "home"),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, last = [
        line for line in done.stderr.splitlines() if line.startswith("warning: tracking")
    ]
    assert "CommError" in first
    assert "2 of 2 trials are not tracked completely" in last
    require_no_key(tmp_path, done.stdout + done.stderr)
    assert len(runs({"results": tmp_path / "results"})) == 2
    for place in (tmp_path / "results/trials").iterdir():
        config = json.loads((place / "config.json").read_text())
        shown = untimed(config)
        (place / "result.json").unlink()
        run_trial(config)
        assert untimed(config) == shown
