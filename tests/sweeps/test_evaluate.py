"""`python -m sweeps evaluate`: which trials are asked, and that a kill costs nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.__main__ import main
from tests.support import asked, small

pytest.importorskip("lm_eval", reason="needs the extra [evaluation]")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
ROOT = Path(__file__).parents[2]


def words(folder: Path, *more: str) -> list[str]:
    """A sweep of four small trials over the corpus in `folder`."""
    sweep = [word for word in small.overrides(folder) if not word.startswith("data=")]
    return ["sweep=main", "scale=micro", "grid.optimizer=[adamw]", "seeds=[0,1]", *sweep, *more]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "tasks=: must name tasks: [mmlu,hellaswag,"),
        (["tasks=[copa,copa]"], "tasks=[copa,copa]: must name each task once"),
        (["tasks=[copa,]"], "must name tasks"),
        (["tasks=copa", "limit=0"], "limit=0: must be a whole number above 0"),
        (["tasks=copa", "max_length=x"], "max_length=x: must be a whole number above 0"),
        (["tasks=copa", "benchmark=hub"], "benchmark=hub"),
        (["tasks=copa"], "must have trials that kept their final weights: 0 of 6"),
    ],
)
def test_bad_words_are_refused_in_a_line(
    given: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *words(tmp_path), "advice=null", *given]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "results").exists(), "nothing is left behind"


@pytest.mark.slow  # two drivers, each with a cluster of its own
def test_a_killed_evaluation_goes_on(tmp_path: Path) -> None:
    own = words(tmp_path, "advice=null")
    run = [sys.executable, "-m", "sweeps"]
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
