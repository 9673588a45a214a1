"""`torchrun -m trainer` is the same trial: the ranks come from it, the numbers do not change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import small
from test_trial import rows, untimed

from trainer.__main__ import main
from trainer.trial import run_trial

GANG = ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2", "num_replicas=2")
GANG = (*GANG, "pipeline.num_microbatches=2", "num_updates=8")


def test_the_same_trial(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += ["--nproc-per-node", "4", "-m", "trainer"]
    words = small.overrides(tmp_path, *GANG, f"out={tmp_path / 'torchrun'}")
    done = subprocess.run([*launcher, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed trial") == 1, "one rank speaks"
    ours = run_trial(small.config(tmp_path, *GANG, f"out={tmp_path / 'spawned'}"))
    theirs = json.loads((tmp_path / "torchrun" / "result.json").read_text())
    assert untimed(theirs) == untimed(ours)
    assert rows(tmp_path / "torchrun") == rows(tmp_path / "spawned")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    for key, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sys, "argv", ["trainer", *small.overrides(tmp_path, *GANG)])
    assert main() == 2
    line = "pipeline.num_stages=2: times num_replicas=2 must be torchrun's 2 processes"
    assert (line in capsys.readouterr().err) == (rank == "0"), "one rank speaks"
