"""SIGTERM and Ctrl-C save a checkpoint; the same command goes on, and nothing is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import small
from test_trial import rows, untimed, wait_for

from trainer import lease
from trainer.errors import Stopped
from trainer.trial import run_trial

ARM = ("pipeline=pipedream_2bw", "correction=error_feedback", "checkpoint_every=100000")
GANG = ("runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
RUNNERS = {"emulated": (), "pipelined": GANG}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_signal_saves_a_checkpoint(runner: str, how: signal.Signals, tmp_path: Path) -> None:
    words = (*ARM, *RUNNERS[runner], "num_updates=4000", "eval_every=100")
    out = tmp_path / "trial"
    command = [sys.executable, "-m", "trainer", *small.overrides(tmp_path, *words), f"out={out}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 100)
        process.send_signal(how)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 143, error
    [checkpoint] = out.glob("checkpoint-*.pt")
    saved = int(checkpoint.name.split("-")[1])
    assert f"stopped after update {saved}" in error
    assert len(rows(out)) == saved
    attempt = json.loads(lease.attempts(out)[-1].read_text())
    assert attempt["ended"] == "Stopped"


@pytest.mark.parametrize("runner", RUNNERS)
def test_short_runs_between_drains_change_no_number(
    runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the end each run is one update long; the emulated trial has runs as long as may be."""
    words = small.config(tmp_path, *ARM, *RUNNERS["pipelined"], "runner=emulated")
    expected = run_trial({**words, "out": str(tmp_path / "whole")})
    monkeypatch.setattr("trainer.training.STOP_WITHIN", 0.0)
    short = {**words, "out": str(tmp_path / "short"), "runner": runner}
    found = run_trial(short)
    assert found["final_val_loss"] == expected["final_val_loss"]
    losses = [[row["train_loss"] for row in rows(tmp_path / name)] for name in ("whole", "short")]
    assert losses[0] == losses[1]


def test_stopped_after_every_update_it_ends_the_same(tmp_path: Path) -> None:
    config = small.config(tmp_path, *ARM)
    expected = run_trial({**config, "out": str(tmp_path / "whole")})
    again = {**config, "out": str(tmp_path / "again")}
    for num_done in range(1, 12):
        with pytest.raises(Stopped, match=f"after update {num_done}:"):
            run_trial(again, asked_to_stop=lambda: True)
    assert untimed(run_trial(again, asked_to_stop=lambda: True)) == untimed(expected)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")
