"""A sweep in a bucket, by its commands: the same tables as in a folder, to the last bit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipegap.trainer.store.bucket import BucketClient
from tests.support import moto, s3_server, small
from tests.support.small_sweep import END_TIMEOUT, LENGTH, BucketSweep, check

pytestmark = pytest.mark.slow
URL = f"s3://{s3_server.BUCKET}/store"
TABLES = ("gaps.csv", "table1_2_losses.csv", "final_losses_main.csv", "validation_curves_main.csv")


def command(folder: Path, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | s3_server.credentials(port) | {"XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", *words], env=environment, check=False, capture_output=True, text=True
    )


@pytest.fixture(params=["ours", "moto"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """Of a server of buckets: ours, or one that this project did not write."""
    if request.param == "moto":
        with moto.serving() as port:
            yield port
        return
    with s3_server.serving() as (_, port):
        yield port


def test_a_bucket_is_a_store(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0,1]")
    words += ["grid.optimizer=[adamw]"]
    common = [word for word in words if not word.startswith("results=")]
    here, there = tmp_path / "here", tmp_path / "there"
    done = command(here, port, "sweeps", *common, f"results={URL}")
    assert done.returncode == 0, done.stderr
    again = command(there, port, "sweeps", *common, f"results={URL}")
    assert "0 to do" in again.stdout, "another machine sees that all is done"
    listed = command(there, port, "sweeps", "list", f"results={URL}", "format=csv")
    assert listed.stdout.count("completed") == 8, listed.stderr
    rerun = command(there, port, "sweeps", "rerun", f"results={URL}", "seed=1", "force=true")
    assert rerun.returncode == 0, rerun.stderr
    pruned = command(here, port, "sweeps", "prune", f"results={URL}", "checkpoints=all")
    assert "deleted 0 checkpoints" in pruned.stdout
    for name, value in s3_server.credentials(port).items():
        monkeypatch.setenv(name, value)
    kept = {meta.key for meta in BucketClient(URL).list("reports")}
    assert "reports/main-micro/gaps.csv" in kept
    assert command(here, 1, "sweeps", *words).returncode == 0
    of_bucket, of_files = tmp_path / "of_bucket", tmp_path / "of_files"
    for results, out in ((URL, of_bucket), (tmp_path / "results", of_files)):
        done = command(there, port, "analysis", f"results={results}", f"out={out}")
        assert done.returncode == 0, done.stderr
    for table in TABLES:
        one, other = (sorted(out.rglob(table)) for out in (of_bucket, of_files))
        assert one, table
        assert [path.read_text() for path in one] == [path.read_text() for path in other], table


@pytest.mark.parametrize("num_drivers", [2, 4])
def test_drivers_share_a_bucket_though_their_clocks_differ(
    num_drivers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is on a machine of its own, a day ahead of the one before."""
    words = [word for word in small.overrides(tmp_path, *LENGTH) if "results=" not in word]
    with s3_server.serving() as (_, port), ExitStack() as running:
        for name, value in s3_server.credentials(port).items():
            monkeypatch.setenv(name, value)
        whole = BucketSweep(tmp_path / "whole", words, bucket=f"s3://{s3_server.BUCKET}")
        whole.finish()
        shared = BucketSweep(tmp_path / "0", words, bucket=f"s3://{s3_server.BUCKET}")
        drivers = [
            running.enter_context(shared.start(**machine(tmp_path / f"{i}", days=i)))
            for i in range(num_drivers)
        ]
        for driver in drivers:
            said, _ = driver.communicate(timeout=END_TIMEOUT)
            assert driver.returncode == 0, said
        shared.finish()
        check(shared, whole)
        for attempts in shared.attempts().values():
            assert sum("from_update" in attempt for attempt in attempts) == 1


def machine(folder: Path, days: int) -> dict[str, str]:
    """The environment of one whose clock is ahead."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import time\nclock = time.time\ntime.time = lambda: clock() + {86400 * days}\n"
    )
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)}
