"""docs/tutorial.md ends in an answer: it runs as printed, but for two of its three optimizers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown import ROOT, shell_lines, write_files

pytestmark = pytest.mark.slow  # test_commands.py checks the words of each command daily
DOCUMENT = ROOT / "docs" / "tutorial.md"
SMALLER = {
    "trial": ["num_updates=4"],
    "sweep": ["grid.optimizer=[muon]"],
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
    assert "20 to do" in line(said, "pipegap sweep", "dry_run=true")
    assert "20/20 completed" in line(said, "pipegap sweep", "data.path=notes")


def test_the_sweep_ends_in_an_answer(said: dict[str, str]) -> None:
    """A decision, and not only a lack of data."""
    answer = line(said, "pipegap sweep", "data.path=notes")
    assert re.search(r"^Muon: (go|stay)", answer, re.MULTILINE)
    assert "Muon" in line(said, "pipegap advise", "microbatches=16")
    assert "Muon" in line(said, "pipegap advise", "optimizer=muon")
