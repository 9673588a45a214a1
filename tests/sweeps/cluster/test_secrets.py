"""Keys of the environment are in no file that a sweep leaves, however it ends."""

import os
import secrets
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

from analysis.objects.bucket import BucketClient
from bench.small_sweep import LENGTH, SWEEP, BucketSweep, SmallSweep
from tests.support import s3_server, small
from tests.support.ray_head import head

NAMES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_API_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "WANDB_API_KEY", "HF_TOKEN"),
)
KEYS = {name: secrets.token_hex(20) for name in NAMES}


def leaks(*folders: Path, bucket: str = "") -> list[str]:
    """Return every key that a file or an object of the bucket holds, with its place."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 50, "a session and a store have more files than that"
    contents = {str(path): path.read_bytes() for path in files}
    if bucket.startswith("s3://"):
        client = BucketClient(bucket)
        objects = {meta.key: client.read(meta.key).content for meta in client.list("")}
        assert objects, "a register each of the trials that have begun"
        contents |= objects
    return [
        f"{name} in {place}"
        for place, content in contents.items()
        for name, key in KEYS.items()
        if key.encode() in content
    ]


@pytest.fixture
def session() -> Iterator[Path]:
    """A folder for Ray's, whose path is short enough for its sockets."""
    folder = Path(mkdtemp(prefix="k-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def sweep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallSweep]:
    words = small.overrides(tmp_path, *LENGTH, "tracking=wandb")
    words = [word for word in words if "results=" not in word]
    if request.param == "folder":
        yield SmallSweep(tmp_path / "store", words)
        return
    with s3_server.serving() as (_, port), pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.credentials(port).items():
            patch.setenv(name, value)
        yield BucketSweep(tmp_path / "store", words, bucket=f"s3://{s3_server.BUCKET}")


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
    assert not leaks(session, tmp_path, bucket=sweep.store)
    for process in sweep.processes():
        os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_no_key_is_left_after_the_end(sweep: SmallSweep, tmp_path: Path) -> None:
    sweep.finish()
    assert not leaks(tmp_path, bucket=sweep.store)


@pytest.mark.slow
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
        submit = [sys.executable, "-m", "sweeps", "submit", *words]
        done = subprocess.run(submit, env=environment, check=False, capture_output=True, text=True)
        assert "completed" in done.stdout, done
        environment["RAY_ADDRESS"] = (files / "ray_current_cluster").read_text()
        killed = SmallSweep(tmp_path / "killed", [w for w in words if "results=" not in w])
        with killed.start(**environment) as driver:
            while killed.num_updates() < 20:
                assert driver.poll() is None, driver.communicate()
                time.sleep(0.05)
            driver.kill()
        assert not leaks(files, tmp_path)
