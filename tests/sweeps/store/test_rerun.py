"""Failed and forced trials run again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipegap.trainer.trial import run_trial
from tests.support import small


@pytest.mark.slow
def test_failed_and_forced_trials_run_again_to_the_same_numbers(tmp_path: Path) -> None:
    whole = small.config(tmp_path, f"results={tmp_path}/whole")
    expected = run_trial(whole)
    for seed in (0, 1):
        run_trial(small.config(tmp_path, f"seed={seed}"))
    trials = tmp_path / "results" / "trials"
    finished = trials / expected["trial_id"]
    [failing] = [folder for folder in trials.iterdir() if folder != finished]
    other = json.loads((failing / "result.json").read_text())
    (failing / "result.json").write_text(json.dumps({**other, "status": "failed"}))
    command = [sys.executable, "-m", "pipegap", "rerun", f"results={tmp_path}/results"]
    words = ["status=failed,completed", "force=true"]
    done = subprocess.run([*command, *words], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 completed"), done.stderr
    earlier = json.loads((finished / "earlier-000001" / "result.json").read_text())
    for folder, loss in ((finished, expected), (failing, other)):
        again = json.loads((folder / "result.json").read_text())
        assert again["final_val_loss"] == loss["final_val_loss"]
        assert len([*folder.glob("attempt-*.json")]) == 2
    assert earlier["final_val_loss"] == expected["final_val_loss"]
    (failing / "result.json").write_text(json.dumps({**other, "status": "failed"}))
    words = ["status=failed", "first_trial=true"]
    done = subprocess.run([*command, *words], check=False, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "1 completed"), done.stderr
    assert sum(line.startswith("first     completed; stopped after 3") for line in lines) == 1
    nothing = subprocess.run(
        [*command, "status=completed"], check=False, capture_output=True, text=True
    )
    assert "2 completed are left as they are" in nothing.stdout
