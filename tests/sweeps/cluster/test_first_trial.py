"""The first updates before a sweep pass, and it begins; test_own_cluster.py has a failure."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import small

SWEEP = ("sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", "advice=null")
GANG = ("runner=pipelined", "pipeline.num_stages=2", "num_threads=1")


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = small.overrides(folder, "num_updates=8", *more)
    command = [sys.executable, "-m", "pipegap", "sweep", *SWEEP, "first_trial=true", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), GANG])
def test_the_sweep_begins_after_its_first_updates(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    [verdict] = [line for line in lines if line.startswith("first     completed; ")]
    assert "the same bits" in verdict
    first = next(i for i, line in enumerate(lines) if line.startswith("1/3 "))
    assert lines.index(verdict) < first
    assert not [*(tmp_path / "results").glob("*first-trial*")]
    assert len([*(tmp_path / "results" / "trials").iterdir()]) == 3, "it is no trial of the store"
