"""`torchrun -m pipegap trial` is the same trial: its ranks, the same numbers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.processes import alive, children, python
from tests.support.trials import rows, untimed, wait_for

PIPELINE = ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2")
PIPELINE = (*PIPELINE, "pipeline.num_microbatches=2", "num_updates=8")
GANG = (*PIPELINE, "num_replicas=2")


def launcher(num_processes: int) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return [*torchrun, str(num_processes), "-m", "pipegap", "trial"]


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_trial(tmp_path: Path, replicas: int) -> None:
    gang = (*PIPELINE, f"num_replicas={replicas}")
    words = small.overrides(tmp_path, *gang, f"out={tmp_path / 'torchrun'}")
    done = python(*launcher(2 * replicas), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed trial") == 1, "one rank speaks"
    ours = run_trial(small.config(tmp_path, *gang, f"out={tmp_path / 'spawned'}"))
    theirs = json.loads((tmp_path / "torchrun" / "result.json").read_text())
    assert untimed(theirs) == untimed(ours)
    assert rows(tmp_path / "torchrun") == rows(tmp_path / "spawned")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    for key, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert main(small.overrides(tmp_path, *GANG)) == 2
    line = "pipeline.num_stages=2: times num_replicas=2 must be torchrun's 2 processes"
    assert (line in capsys.readouterr().err) == (rank == "0"), "one rank speaks"


@pytest.mark.slow  # torchrun gives a rank 30 seconds to end before it kills it
def test_a_rank_that_hangs_ends_them_all(tmp_path: Path) -> None:
    """Within the trial's `timeout` the others notice, whatever group they wait in."""
    out = tmp_path / "torchrun"
    words = small.overrides(tmp_path, *GANG, "num_updates=100000", "timeout=5", f"out={out}")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, *launcher(4), *words], stdout=log, stderr=log)
    try:
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) > 3, seconds=60)
        ranks = children(process.pid)
        assert len(ranks) == 4
        os.kill(ranks[-1], signal.SIGSTOP)
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
    wait_for(lambda: not any(map(alive, ranks)), seconds=60)
    assert "lost another rank" in (tmp_path / "log").read_text()
