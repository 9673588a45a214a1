"""A search by its command, killed on the way."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import small


def command(folder: Path) -> list[str]:
    words = small.overrides(folder, "num_updates=30", "checkpoint_every=5")
    search = ["search=optuna", "search.budget=6", "search.at_once=2"]
    sweep_words = ["sweep=main", "scale=micro", "seeds=[0,1]", "advice=null", *search]
    grid = "grid.optimizer=[{optimizer: adamw}]"
    return [sys.executable, "-m", "pipegap", "sweep", *sweep_words, grid, *words]


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "results" / "reports" / "main-micro" / name).open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_search_killed_on_the_way_ends_with_the_same_and_trains_nothing_twice(
    tmp_path: Path,
) -> None:
    """The whole command: its files, its line on the best settings, and a second run that adds
    nothing."""
    whole = tmp_path / "whole"
    said = subprocess.run(command(whole), check=True, capture_output=True, text=True).stdout
    [row, *_] = table(whole, "best.csv")
    assert f"{float(row['gap']):+.4f} [" in said
    killed = tmp_path / "killed"
    with subprocess.Popen(command(killed), stdout=subprocess.DEVNULL) as driver:
        while len(list(killed.glob("results/trials/*/result.json"))) < 8:
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    before = {path: path.stat().st_mtime_ns for path in killed.glob("results/trials/*/result.json")}
    subprocess.run(command(killed), check=True, capture_output=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert table(killed, "searched.csv") == table(whole, "searched.csv")
    assert table(killed, "best.csv") == table(whole, "best.csv")
