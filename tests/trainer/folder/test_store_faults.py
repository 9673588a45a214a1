"""A disk that is full, a store that cannot be written, files that are not whole: said, no harm."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.trainer.__main__ import main as trial
from pipegap.trainer.base.cli import end_with
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.trials import rows, untimed


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 800 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_in_a_line_and_the_trial_goes_on_when_there_is_space(
    tmp_path: Path, tiny_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("num_updates=40", "checkpoint_every=5", f"out={tiny_disk / 'trial'}")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"0" * 650_000)
    with pytest.raises(SystemExit) as ended:
        end_with(lambda: trial(small.overrides(tmp_path, *words)))
    assert ended.value.code == 1
    errors = capsys.readouterr().err
    assert errors.strip().splitlines()[-1].startswith("pipegap trial: ")
    assert "No space left on device" in errors
    assert "Traceback" not in errors
    ballast.unlink()
    result = run_trial(small.config(tmp_path, *words))
    expected = run_trial(small.config(tmp_path, "num_updates=40", f"out={tmp_path / 'whole'}"))
    assert untimed(result) == untimed(expected)
    assert rows(tiny_disk / "trial") == rows(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_may_not_be_written_is_refused_by_permission(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir(mode=0o500)
    assert main(["sweep=main", "scale=micro", *small.overrides(tmp_path)]) == 2
