"""Sweeps that choose settings, by their command: what they report, and a kill on the way."""

import csv
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import small

pytestmark = pytest.mark.slow
SEARCH = ("search=optuna", "search.budget=6", "search.at_once=2", "advice=null")
TUNED = "grid.optimizer=[{optimizer: adamw, optimizer.lr: 0.01}]"
SWEEPS = {
    "tuned": (1, ["sweep=optimizers", "seeds=[0]", TUNED]),
    "searched": (8, ["sweep=main", "seeds=[0,1]", "grid.optimizer=[{optimizer: adamw}]", *SEARCH]),
}
"""File of all that was tried → after how many trials the driver is killed, and its words."""


def command(folder: Path, kind: str) -> list[str]:
    words = small.overrides(folder, "num_updates=30", "checkpoint_every=5")
    words = [word for word in words if not word.startswith("optimizer.lr")]
    return [sys.executable, "-m", "pipegap", "sweep", "scale=micro", *SWEEPS[kind][1], *words]


def run(folder: Path, kind: str) -> str:
    return subprocess.run(command(folder, kind), check=True, capture_output=True, text=True).stdout


def table(folder: Path, name: str) -> list[dict[str, str]]:
    [path] = folder.glob(f"results/reports/*/{name}.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", SWEEPS)
def test_a_sweep_killed_while_it_chooses_chooses_the_same_and_trains_nothing_twice(
    kind: str, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run(whole, kind)
    with subprocess.Popen(command(killed, kind), stdout=subprocess.DEVNULL) as driver:
        while len(list(killed.glob("results/trials/*/result.json"))) < SWEEPS[kind][0]:
            assert driver.poll() is None
            time.sleep(0.05)
        driver.kill()
    before = {path: path.stat().st_mtime_ns for path in killed.glob("results/trials/*/result.json")}
    said = run(killed, kind)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert table(killed, kind) == table(whole, kind)
    num_trials = len(list(killed.glob("results/trials/*")))
    if kind == "tuned":
        tried, compared = table(killed, kind), table(killed, "trials")
        [chosen] = [row["optimizer.lr"] for row in tried if row["chosen"] == "True"]
        assert [row["optimizer.lr"] for row in compared] == [chosen] * 3
        assert num_trials == len(tried) + 2
        assert f"optimizer.lr={float(chosen):g}" in said
    else:
        assert table(killed, "best") == table(whole, "best")
        assert f"{float(table(killed, 'best')[0]['gap']):+.4f} [" in said
    assert f"{num_trials} unique, {num_trials} done, 0 to do" in run(killed, kind)
