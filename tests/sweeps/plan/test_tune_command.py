"""A sweep that tunes by its command, killed on the way."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import small

KEY = "optimizer.lr"


def command(folder: Path) -> list[str]:
    words = small.overrides(folder, "num_updates=30", "checkpoint_every=5")
    words = [word for word in words if not word.startswith(KEY)]
    choice = "grid.optimizer=[{optimizer: adamw, optimizer.lr: 0.01}]"
    sweep_words = ["sweep=optimizers", "scale=micro", "seeds=[0]", choice]
    return [sys.executable, "-m", "pipegap", "sweep", *sweep_words, *words]


def run(folder: Path) -> str:
    done = subprocess.run(command(folder), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "results" / "reports" / "optimizers-micro" / name).open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a tuned sweep that ran undisturbed, and what it printed."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, run(folder)


@pytest.mark.slow
def test_a_tuned_sweep_reports_its_arms_alone_and_is_done(whole: tuple[Path, str]) -> None:
    folder, said = whole
    tried, compared = table(folder, "tuned.csv"), table(folder, "trials.csv")
    [chosen] = [row[KEY] for row in tried if row["chosen"] == "True"]
    assert [row["optimizer.lr"] for row in compared] == [chosen] * 3
    num_trials = len(list((folder / "results" / "trials").iterdir()))
    assert num_trials == len(tried) + 2
    assert f"optimizer.lr={float(chosen):g}" in said
    notes = (folder / "results" / "reports" / "optimizers-micro" / "gaps.md").read_text()
    assert "the choice favours sync at that seed" in notes
    assert f"{num_trials} unique, {num_trials} done, 0 to do" in run(folder)


@pytest.mark.slow
def test_a_sweep_killed_while_it_tunes_chooses_the_same(
    whole: tuple[Path, str], tmp_path: Path
) -> None:
    with subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL) as driver:
        while not list(tmp_path.glob("results/trials/*/checkpoint*")):
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    run(tmp_path)
    assert table(tmp_path, "tuned.csv") == table(whole[0], "tuned.csv")
