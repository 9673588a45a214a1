"""Trials are listed, run again and pruned by what is known of them; nothing is lost by it."""

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.commands.rerun import recorded
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.lease import leased
from pipegap.trainer.store.files import FileStore
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.synthetic_store import config, write, write_arms


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Trials 0 to 5: sync completed, delay completed and diverged, muon, failed, interrupted."""
    write_arms(tmp_path, {"sync": [1.5], "delay": [1.75, None]})
    write_arms(tmp_path, {"sync": [1.1]}, optimizer="muon")
    error = 'Traceback (most recent call last):\n  File "x"\nOSError: no space left'
    failed = config("delay", seed=3)
    write(tmp_path, failed, {"status": "failed", "error": error, "data_hash": None, "seed": 3})
    write(tmp_path, config("sync", seed=4), None)
    return tmp_path


def ids(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["list", "format=csv", "columns=trial_id", *words]) == 0
    return capsys.readouterr().out.split()[1:]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ([], "1 2 4 0 5 3"),
        (["status=failed"], "4"),
        (["status=failed,interrupted"], "4 5"),
        (["optimizer=muon"], "3"),
        (["pipeline=pipedream_2bw", "seed=0"], "1"),
        (["optimizer.lr=4e-3", "seed=[0,1]", "arm=del*"], "1 2"),
        (["optimizer.lr=0.005"], ""),
        (["save_final=false", "status=diverged"], "2"),
        (["pipeline.synchronous_start=none"], "0 5 3"),
    ],
)
def test_trials_are_selected(
    words: list[str], names: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of optimizer, arm and seed."""
    assert ids(capsys, f"results={store}", *words) == [f"000{name}" for name in names.split()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "optimiser=muon"], "must be a column of the trials (did you mean optimizer"),
        (["list", "columns=trial_id,los"], "final_val_loss"),
        (["list", "status=fialed"], "must be among completed"),
        (["list", "seed=one"], "must be a number"),
        (["list", "save_final=1"], "true or false"),
    ],
)
def test_a_condition_that_no_trial_can_fulfil_is_refused_in_one_line(
    words: list[str], says: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"results={store}"]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


def test_a_list_says_what_matters_and_files_say_all(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with leased(store / "trials" / "0005", lambda: "completed"):
        assert main(["list", f"results={store}"]) == 0
        text = capsys.readouterr().out
    assert "OSError: no space left" in text
    assert "Traceback" not in text
    assert all(word in text.splitlines()[5] for word in ("running", "pid"))
    assert main(["list", f"results={store}", "format=json", "columns=seed,final_val_loss"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[:3] == [
        {"seed": 0, "final_val_loss": 1.75},
        {"seed": 1, "final_val_loss": None},
        {"seed": 3, "final_val_loss": None},
    ]
    assert main(["list", f"results={store}", "format=csv", "status=failed"]) == 0
    [row] = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert row["error"].startswith("Traceback")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["optimizer=sgd", "seed=7"],
            "no trial with optimizer=sgd, seed=7: optimizer is adamw (5 trials), muon (1 trial); "
            "seed is 0 (3 trials), 1 (1 trial), 3 (1 trial), 4 (1 trial)",
        ),
        (
            ["optimizer=muon", "status=failed"],
            "no trial with optimizer=muon, status=failed: optimizer is adamw (1 trial) where "
            "status=failed; status is completed (1 trial) where optimizer=muon",
        ),
        (
            ["pipeline.synchronous_start=0.5"],
            "no trial with pipeline.synchronous_start=0.5: "
            "pipeline.synchronous_start is 0 (3 trials), none (3 trials)",
        ),
    ],
)
def test_an_empty_answer_says_what_there_is(
    words: list[str], says: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("list", "rerun"):
        assert main([command, f"results={store}", *words]) == 0
        assert capsys.readouterr().err == f"{says}\n"


def test_no_store_is_bad_input_and_an_empty_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", f"results={tmp_path}/nowhere"]) == 2
    for words in (["list"], ["rerun", "status=failed"], ["prune", "checkpoints=all"]):
        assert main([*words, f"results={tmp_path}"]) == 0
    assert main(["status", "sweep=main", "scale=micro", f"results={tmp_path}/nowhere"]) == 0
    assert "24 waiting" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("checkpoints", "kept"), [("finished", "4 5"), ("failed", "0 1 2 3 5"), ("all", "")]
)
def test_checkpoints_are_deleted_but_of_trials_that_run(
    checkpoints: str, kept: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = sorted((store / "trials").iterdir())
    for folder in folders:
        (folder / "checkpoint-000000001-a.pt").write_bytes(bytes(500_000))
        (folder / ".checkpoint-7.partial").write_bytes(bytes(500_000))
    words = ["prune", f"checkpoints={checkpoints}", f"results={store}"]
    with leased(folders[0], lambda: "completed"):  # as if it were at its last words
        assert main([*words, "dry_run=true"]) == 0
        assert len([*store.glob("trials/*/*checkpoint*")]) == 12
        assert main(words) == 0
    left = {path.parent.name for path in store.glob("trials/*/*checkpoint*")}
    assert left == {f"000{name}" for name in kept.split()} | {"0000"}
    num = 6 - len(left)
    would, did = capsys.readouterr().out.splitlines()
    assert did == f"deleted {2 * num} checkpoints of {num} trials, {num:.1f} MB"
    assert would.removeprefix("would delete") == did.removeprefix("deleted")
    assert len([*store.glob("trials/*/result.json")]) == 5


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_was_set_aside_comes_back_unless_the_trial_began(store: Path) -> None:
    folder = store / "trials" / "0000"
    trial: Any = SimpleNamespace(folder=folder)
    before = contents(folder)
    restore = FileStore(store).archive(trial)
    assert {path.name for path in folder.iterdir()} == {"config.json", "earlier-000001"}
    restore()
    assert contents(folder) == before
    restore = FileStore(store).archive(trial)
    with leased(folder, lambda: "completed"):
        pass
    restore()
    moved = {name: before[name] for name in ("result.json", "metrics.jsonl")}
    assert contents(folder / "earlier-000001").items() >= moved.items()


def test_a_trial_that_would_be_another_now_is_refused(tmp_path: Path) -> None:
    made = small.config(tmp_path)
    done = run_trial(made)
    folder = tmp_path / "results" / "trials" / done["trial_id"]
    again = recorded(folder, "sync", done["trial_id"], tmp_path / "results")
    assert (again.plan.trial_id, again.folder) == (done["trial_id"], folder)
    moved = tmp_path / "elsewhere"
    (tmp_path / "results").rename(moved)
    again = recorded(moved / "trials" / folder.name, "sync", folder.name, moved)
    assert again.folder == moved / "trials" / folder.name  # not where it was made
    config_file = moved / "trials" / folder.name / "config.json"
    unnamed = {
        key: value for key, value in json.loads(config_file.read_text()).items() if key != "choices"
    }
    config_file.write_text(json.dumps(unnamed))  # as it was before names were recorded
    before = recorded(config_file.parent, "sync", folder.name, moved)
    assert before.plan.trial_id == folder.name
    assert before.config["choices"]["optimizer"] == "adamw"
    changed: dict[str, Any] = {**json.loads(config_file.read_text()), "seed": 5}
    config_file.write_text(json.dumps(changed))
    with pytest.raises(BadInput, match="now it would be"):
        recorded(config_file.parent, "sync", folder.name, moved)
    config_file.write_text("{}")
    with pytest.raises(BadInput, match="cannot run"):
        recorded(config_file.parent, "sync", folder.name, moved)
