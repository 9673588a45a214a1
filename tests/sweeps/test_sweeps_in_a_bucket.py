"""A sweep in a bucket, by its commands: the same tables as in a folder, to the last bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipegap.trainer.store.bucket import BucketClient
from tests.support import moto, small
from tests.support.small_sweep import LENGTH, BucketSweep, check, disturb

pytestmark = pytest.mark.slow
URL = f"s3://{moto.BUCKET}/store"
TABLES = ("gaps.csv", "table1_2_losses.csv", "final_losses_main.csv", "validation_curves_main.csv")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "pipegap", *words],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.usefixtures("moto_server")
def test_a_bucket_of_moto_is_a_store(tmp_path: Path) -> None:
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0,1]")
    words += ["grid.optimizer=[adamw]"]
    common = [word for word in words if not word.startswith("results=")]
    here, there = tmp_path / "here", tmp_path / "there"
    done = command(here, "sweep", *common, f"results={URL}")
    assert done.returncode == 0, done.stderr
    again = command(there, "sweep", *common, f"results={URL}")
    assert "0 to do" in again.stdout, "another machine sees that all is done"
    listed = command(there, "list", f"results={URL}", "format=csv")
    assert listed.stdout.count("completed") == 8, listed.stderr
    rerun = command(there, "rerun", f"results={URL}", "seed=1", "force=true")
    assert rerun.returncode == 0, rerun.stderr
    pruned = command(here, "prune", f"results={URL}", "checkpoints=all")
    assert "deleted 0 checkpoints" in pruned.stdout
    kept = {meta.key for meta in BucketClient(URL).list("reports")}
    assert "reports/main-micro/gaps.csv" in kept
    assert command(here, "sweep", *words).returncode == 0
    of_bucket, of_files = tmp_path / "of_bucket", tmp_path / "of_files"
    for results, out in ((URL, of_bucket), (tmp_path / "results", of_files)):
        done = command(there, "report", f"results={results}", f"out={out}")
        assert done.returncode == 0, done.stderr
    for table in TABLES:
        one, other = (sorted(out.rglob(table)) for out in (of_bucket, of_files))
        assert one, table
        assert [path.read_text() for path in one] == [path.read_text() for path in other], table


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.usefixtures("moto_server")
def test_a_sweep_in_a_bucket_of_moto_survives_its_driver(
    how: signal.Signals, tmp_path: Path
) -> None:
    """The next one takes the prefix over, and goes on from what was uploaded."""
    words = [word for word in small.overrides(tmp_path, *LENGTH) if "results=" not in word]
    bucket = f"s3://{moto.BUCKET}"
    whole = BucketSweep(tmp_path / "whole", words, bucket=bucket)
    whole.finish()
    sweep = BucketSweep(tmp_path / "killed", words, bucket=bucket)
    is_killed, _ = disturb(sweep, "driver", how, whole.num_updates() // 2)
    assert is_killed
    sweep.finish()
    check(sweep, whole)
