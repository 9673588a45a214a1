"""Keys of the environment are in no file that a sweep leaves, however it ends."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.support import moto, small
from tests.support.keys import leaks, new_keys
from tests.support.ray_head import head
from tests.support.small_sweep import LENGTH, SWEEP, BucketSweep, SmallSweep

pytestmark = pytest.mark.slow  # test_own_cluster.py has a sweep in a folder
KEYS = new_keys()


@pytest.fixture
def session() -> Iterator[Path]:
    """A folder for Ray's, whose path is short enough for its sockets."""
    folder = Path(mkdtemp(prefix="k-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["folder", "bucket"])
def sweep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallSweep]:
    words = small.overrides(tmp_path, *LENGTH, "tracking=wandb")
    words = [word for word in words if "results=" not in word]
    if request.param == "folder":
        yield SmallSweep(tmp_path / "store", words)
        return
    request.getfixturevalue("moto_server")
    yield BucketSweep(tmp_path / "store", words, bucket=f"s3://{moto.BUCKET}")


@pytest.fixture
def environment(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in {**KEYS, "RAY_TMPDIR": str(session), "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, key)


@pytest.mark.usefixtures("environment")
def test_no_key_is_left_by_a_killed_driver(
    sweep: SmallSweep, session: Path, tmp_path: Path
) -> None:
    """Ray's logs stay."""
    with sweep.start() as driver:
        while sweep.num_updates() < 20:
            assert driver.poll() is None, driver.communicate()
            time.sleep(0.05)
        driver.kill()
    [left] = session.glob("pipegap-ray-*")
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert not leaks(KEYS, session, tmp_path, bucket=sweep.store)
    for process in sweep.processes():
        os.kill(process, signal.SIGKILL)


@pytest.mark.usefixtures("environment")
def test_no_key_is_left_after_the_end(sweep: SmallSweep, tmp_path: Path) -> None:
    sweep.finish()
    assert not leaks(KEYS, tmp_path, bucket=sweep.store)


def test_no_key_is_left_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes, one job that ends and one driver that is killed; Ray's logs stay in both cases."""
    for name, key in {**KEYS, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, key)
    words = [*SWEEP, *small.overrides(tmp_path, *LENGTH, "tracking=wandb")]
    with head(num_cpus=1, num_others=1) as (environment, files):
        deadline = time.monotonic() + 120
        while len(list(files.glob("session_latest/logs/raylet*.out"))) < 2:
            assert time.monotonic() < deadline, (files / "start.log").read_text()
            time.sleep(0.1)
        submit = [sys.executable, "-m", "pipegap", "submit", *words]
        done = subprocess.run(submit, env=environment, check=False, capture_output=True, text=True)
        assert "completed" in done.stdout, done
        environment["RAY_ADDRESS"] = (files / "ray_current_cluster").read_text()
        killed = SmallSweep(tmp_path / "killed", [w for w in words if "results=" not in w])
        with killed.start(**environment) as driver:
            while killed.num_updates() < 20:
                assert driver.poll() is None, driver.communicate()
                time.sleep(0.05)
            driver.kill()
        assert not leaks(KEYS, files, tmp_path)
