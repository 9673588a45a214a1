"""docs/tutorial.md works as printed, in smaller runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, shell_lines, write_files

pytestmark = pytest.mark.slow  # test_commands.py checks the words of each command daily
DOCUMENT = ROOT / "docs" / "tutorial.md"
SMALLER = {
    "trial": ["num_updates=4"],
    "sweep": ["num_updates=8", "eval_every=8", "grid.optimizer=[adamw,muon]", "seeds=[0]"],
    "advise": ["stages=4", "microbatches=8"],
}
"""Command → words that win over those of the page."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each line of the page prints, by its words; the lines of the installation are left out.

    A line that fails is an error of the fixture.
    """
    folder = tmp_path_factory.mktemp("tutorial")
    write_files(DOCUMENT, folder)
    lines = [words for words in shell_lines(DOCUMENT) if words[0] in ("python", "pipegap")]
    return {" ".join(words): run(folder, words) for words in lines}


def run(folder: Path, words: list[str]) -> str:
    program, name, *rest = words
    command = [name] if program == "python" else ["-m", "pipegap", name]
    given = {word.partition("=")[0]: word for word in [*rest, *SMALLER.get(name, [])]}
    done = subprocess.run(
        [sys.executable, *command, *given.values()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def line(said: dict[str, str], begin: str, end: str = "") -> str:
    [printed] = [
        out for words, out in said.items() if words.startswith(begin) and words.endswith(end)
    ]
    return printed


def test_a_trial_trains_on_the_text(said: dict[str, str]) -> None:
    assert line(said, "pipegap trial model").startswith("completed trial")


def test_the_price_is_that_of_what_then_runs(said: dict[str, str]) -> None:
    assert "8 to do" in line(said, "pipegap sweep", "dry_run=true")
    assert "8/8 completed" in line(said, "pipegap sweep", "seeds=[0,1,2]")


def test_the_answer_names_every_optimizer(said: dict[str, str]) -> None:
    answer = line(said, "pipegap advise", "microbatches=16")
    assert "AdamW" in answer
    assert "Muon" in answer
    assert "Muon" in line(said, "pipegap advise", "optimizer=muon")
