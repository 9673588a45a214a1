"""A sweep is planned, or refused before it starts; it runs what is missing, whatever fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.__main__ import main
from sweeps.request.checks import check_sweep
from sweeps.request.files import known
from tests.support import small
from tests.support.sweep_requests import content, expand


def test_a_store_that_cannot_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep=main", "results=/proc/store"]) == 2
    assert "results=/proc/store: must be a folder that can be written" in capsys.readouterr().err


def test_everything_that_is_missing_is_named_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody fetches a GPU to learn that there is no data."""
    words = [f"results={tmp_path}", "sweep=main", "device=cuda", f"data.path={tmp_path / 'none'}"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device=cuda: no such GPU" in error
    assert f"also data.path={tmp_path / 'none'}: holds no manifest.json" in error


@pytest.mark.parametrize(
    "scale",
    [
        pytest.param(name, marks=() if name == "few_updates" else pytest.mark.slow)
        for name in known("scale")
    ],
)
def test_every_sweep_can_be_planned_at_every_scale_anywhere(
    scale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All at once: what they share is composed once. An arm has the name that a report gives it."""
    words = ["sweep=all", f"scale={scale}", f"results={tmp_path / 'store'}"]
    assert main([*words, "dry_run=true"]) == 0
    plan = capsys.readouterr().out
    assert ", 0 done" in plan
    rows = [line.split()[0] for line in plan.splitlines()]
    labels = [f"{name}-{scale}" for name in known("sweep")]
    assert rows[: len(labels) + 3] == ["trials", "sweep", *labels, "together"]
    assert not list(tmp_path.iterdir())


def words(folder: Path, *more: str) -> list[str]:
    changes = small.overrides(folder, "num_updates=60", "checkpoint_every=5", *more)
    return ["sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", *changes]


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sweeps", *words(folder, *more)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def losses(folder: Path) -> dict[str, float]:
    results = (json.loads(p.read_text()) for p in folder.glob("results/trials/*/result.json"))
    return {result["trial_id"]: result["final_val_loss"] for result in results}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "delay_ef" in done.stdout
    assert "4 stages, 8 microbatches  1F1B " in done.stdout
    assert "AdamW: not enough data, against any schedule; " in done.stdout  # of one seed
    assert "to settle it against ZB-V: python -m sweeps sweep=main scale=micro" in done.stdout
    return folder


@pytest.mark.usefixtures("without_figures")
def test_a_sweep_runs_reports_and_is_done(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(losses(whole)) == 4
    record = json.loads((whole / "results/sweeps/main-micro.json").read_text())
    assert set(record["trials"]) == set(losses(whole))
    assert set(record["compared"]) < set(losses(whole))
    [longer] = set(losses(whole)) - set(record["compared"])
    config = json.loads((whole / "results/trials" / longer / "config.json").read_text())
    assert (config["num_updates"], config["seed"]) == (83, 0)  # 1.375 times 60, and rounded up
    before = {p: p.stat().st_mtime_ns for p in whole.glob("results/trials/*/*")}
    assert main(words(whole)) == 0
    assert "4 done, 0 to do" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in whole.glob("results/trials/*/*")} == before
    assert main(words(whole, "advice=null")) == 0, "the last command has the last word"
    record = json.loads((whole / "results/sweeps/main-micro.json").read_text())
    assert set(record["trials"]) == set(losses(whole)) - {longer}
    assert record["words"][-1] == "advice=null"
    assert all(trial["seconds"] is not None for trial in record["trials"].values())


@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_stops_no_other(tmp_path: Path) -> None:
    """The delayed arms cannot write their rows; sync can."""
    dry = run(tmp_path, "dry_run=true")
    assert dry.returncode == 0, dry.stderr
    sweep = check_sweep(
        content(base=small.overrides(tmp_path, "num_updates=60", "checkpoint_every=5"))
    )
    [broken] = [t for t in expand(sweep, tmp_path / "results") if t.arm == "delay"]
    (broken.folder / "metrics.jsonl").mkdir(parents=True)
    done = run(tmp_path, "eval_every=4")
    assert done.returncode == 1
    assert "failed: adamw delay seed 0" in done.stdout
    result = json.loads((broken.folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert "metrics.jsonl" in result["error"]
    assert sum(loss is not None for loss in losses(tmp_path).values()) == 3
