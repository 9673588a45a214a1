"""`pipegap evaluate`: which trials are asked, and that a kill costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipegap.sweeps.__main__ import main
from tests.support import asked, small

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ROOT = Path(__file__).parents[2]


def words(folder: Path, *more: str) -> list[str]:
    """A sweep of four small trials over the corpus in `folder`."""
    sweep = [word for word in small.overrides(folder) if not word.startswith("data=")]
    return ["sweep=main", "scale=micro", "grid.optimizer=[adamw]", "seeds=[0,1]", *sweep, *more]


def test_where_no_trial_kept_its_weights_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *words(tmp_path), "advice=null", "tasks=copa"]) == 2
    assert "must have trials that kept their final weights: 0 of 6" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_a_mistyped_task_is_refused_before_lm_eval_is_imported(tmp_path: Path) -> None:
    code = "import sys; from pipegap.sweeps.__main__ import main; "
    code += f"print(main({['evaluate', 'tasks=piqqa']}), 'lm_eval' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "2 False\n"
    assert "tasks=piqqa: must be one of piqa, " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # two drivers, each with a cluster of its own
def test_a_killed_evaluation_goes_on(tmp_path: Path) -> None:
    own = words(tmp_path, "advice=null")
    run = [sys.executable, "-m", "pipegap", "sweep"]
    subprocess.run([*run, *own, "save_final=true"], cwd=ROOT, check=True, capture_output=True)
    task = asked.write_task(tmp_path)
    ask = [*run, "evaluate", *own, f"tasks=[{task}]"]
    killed = subprocess.Popen(ask, cwd=ROOT, start_new_session=True, stdout=subprocess.DEVNULL)
    answers = tmp_path / "results" / "trials"
    deadline = time.monotonic() + 120
    while not [*answers.glob("*/evaluation/*.jsonl")] and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    done = subprocess.run(ask, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "180 of 180 answered" in done.stdout
    files = [*answers.glob("*/evaluation/sums-*[!d].jsonl")]
    assert len(files) == 6
    for file in files:
        found = [json.loads(line)["question"] for line in file.read_text().splitlines()]
        assert found == [*range(len(asked.QUESTIONS))]
    assert not [*answers.glob("*/evaluation/*.unfinished.jsonl")]
    again = subprocess.run(ask, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "6 trials, 0 to ask: 180 of 180 answered" in again.stdout
