"""A trial that another process took over ends in one line, and loses nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import small
from tests.support.trials import wait_for
from trainer.folder.lease import attempt_path

GANG = ("runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
RUNNERS = {"emulated": (), "pipelined": GANG}


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_loser_says_one_line_and_fails(runner: str, tmp_path: Path) -> None:
    out = tmp_path / "trial"
    words = (*RUNNERS[runner], "num_updates=4000", "eval_every=4000", f"out={out}")
    command = [sys.executable, "-m", "trainer", *small.overrides(tmp_path, *words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 10)
        attempt_path(out, 2).touch()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert error == f"python -m trainer: {out} was taken over by another process\n"
    assert not (out / "result.json").exists()
