"""A sweep in a bucket, by its commands: the same tables as in a folder, to the last bit."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.small_sweep import END_TIMEOUT, LENGTH, BucketSweep, check
from tests.support import moto, s3_server, small

pytestmark = pytest.mark.slow
URL = f"s3://{s3_server.BUCKET}/store"
TABLES = ("gaps.csv", "table1_2_losses.csv", "final_losses_main.csv", "validation_curves_main.csv")


def command(folder: Path, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | s3_server.credentials(port) | {"XDG_CACHE_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", *words], env=environment, check=False, capture_output=True, text=True
    )


def test_a_bucket_is_a_store(tmp_path: Path) -> None:
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0,1]")
    words += ["grid.optimizer=[adamw]"]
    common = [word for word in words if not word.startswith("results=")]
    with s3_server.serving() as (server, port):
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
        assert (
            command(
                there, port, "analysis", f"results={URL}", f"out={tmp_path / 'of_bucket'}"
            ).returncode
            == 0
        )
        assert any(key.endswith("reports/main-micro/gaps.csv") for key in server.objects)
    assert command(here, 1, "sweeps", *words).returncode == 0
    of_files = tmp_path / "of_files"
    assert (
        command(
            here, 1, "analysis", f"results={tmp_path / 'results'}", f"out={of_files}"
        ).returncode
        == 0
    )
    for table in TABLES:
        one, other = (sorted(out.rglob(table)) for out in (tmp_path / "of_bucket", of_files))
        assert one
        assert [path.read_text() for path in one] == [path.read_text() for path in other]


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


def test_a_server_that_is_not_ours_holds_the_same(tmp_path: Path) -> None:
    words = small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0,1]")
    words = [word for word in words if "results=" not in word] + ["grid.optimizer=[adamw]"]
    tables: list[list[str]] = []
    with moto.serving() as port:
        for results in (URL, str(tmp_path / "results")):
            out = tmp_path / f"of_{len(tables)}"
            done = command(tmp_path, port, "sweeps", *words, f"results={results}")
            assert done.returncode == 0, done.stderr
            command(tmp_path, port, "analysis", f"results={results}", f"out={out}")
            tables.append([path.read_text() for name in TABLES for path in out.rglob(name)])
    assert len(tables[0]) == len(TABLES)
    assert tables[0] == tables[1]


def machine(folder: Path, days: int) -> dict[str, str]:
    """The environment of one whose clock is ahead."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        f"import time\nclock = time.time\ntime.time = lambda: clock() + {86400 * days}\n"
    )
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder)}
