"""The record of a sweep says what the last command planned, while it runs and when it is done."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.files import FileStore
from tests.support import small
from tests.support.records import finished

SWEEP = """\
scales: {micro: ["seeds=[3, 5]"]}
grid: {optimizer.lr: [0.1, 0.2]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}
seeds: [0]
question: does it?
verdict: the rule
"""


def words(folder: Path, more: str = "") -> list[str]:
    (folder / "mine.yaml").write_text(SWEEP + more)
    given = [word for word in small.overrides(folder) if not word.startswith("optimizer.lr")]
    return [f"sweep={folder / 'mine.yaml'}", "scale=micro", *given]


def look_at(folder: Path, more: str = "") -> Round:
    """What is asked for, and its plan."""
    request = parse_request(words(folder, more))
    return Round.first(request, FileStore(request.results))


def recorded(folder: Path, now: Round) -> dict[str, Any]:
    """The record that is written of the plan."""
    sweep_record.write(now, now.sweeps)
    return read(folder)


def finish(trial: Trial, loss: float) -> None:
    """Finishes the trial with a throughput of half its tokens per second."""
    trial.folder.mkdir(parents=True)
    (trial.folder / "config.json").write_text(json.dumps(trial.config))
    result = finished(final_val_loss=loss, tokens=trial.plan.tokens)
    speed = {"tokens_per_second": trial.plan.tokens / 2}
    (trial.folder / "result.json").write_text(json.dumps({**result, **speed}))


def read(folder: Path) -> dict[str, Any]:
    [path] = (folder / "results" / "sweeps").iterdir()
    assert path.name == "mine-micro.json"
    record: dict[str, Any] = json.loads(path.read_text())
    return record


def test_it_holds_what_was_asked_and_every_trial(tmp_path: Path) -> None:
    record = recorded(tmp_path, look_at(tmp_path))
    assert record["sweep"] == "mine"
    assert (record["scale"], record["label"]) == ("micro", "mine-micro")
    assert (record["question"], record["verdict"]) == ("does it?", "the rule")
    assert record["words"] == words(tmp_path)
    assert (record["arms"], record["seeds"]) == (["sync", "delay"], [3, 5])
    assert (record["settled"], record["remarks"]) == (True, [])
    trials = record["trials"]
    assert record["compared"] == sorted(trials)
    assert sorted((t["arm"], t["seed"]) for t in trials.values()) == sorted(
        [(arm, seed) for arm in ("sync", "delay") for seed in (3, 5)] * 2
    )
    assert {t["tokens"] for t in trials.values()} == {12 * 4 * 16}
    assert all(t["flops"] > 0 and t["seconds"] is None for t in trials.values())


def test_of_a_sweep_that_runs_seconds_are_by_what_has_finished(tmp_path: Path) -> None:
    now = look_at(tmp_path)
    finish(now.planned[0], 2.0)
    trials = recorded(tmp_path, now)["trials"].values()
    assert [trial["seconds"] for trial in trials] == [pytest.approx(2.0)] * 8


def test_with_tuning_and_early_stop_it_follows_what_is_chosen(tmp_path: Path) -> None:
    """Nothing is compared before it is chosen; of two points the worse one is left out."""
    more = "tune: {clip_norm: [1, 2]}\nearly_stop: {margin: 0.1}\n"
    now = look_at(tmp_path, more)
    first = recorded(tmp_path, now)
    assert (first["settled"], first["compared"]) == (False, [])
    assert any("not chosen yet" in remark for remark in first["remarks"])
    while todo := [trial for trial in now.runnable if not trial.folder.exists()]:
        for trial in todo:
            if not trial.folder.exists():
                lr, clip = trial.config["optimizer"]["lr"], trial.config["clip_norm"]
                finish(trial, 2 + 10 * lr + abs(clip - 1) / 100)
        now = now.again()
    last = recorded(tmp_path, now)
    assert last["settled"]
    compared = [last["trials"][key] for key in last["compared"]]
    assert sorted((t["arm"], t["seed"]) for t in compared) == [
        (arm, seed) for arm in ("delay", "sync") for seed in (3, 5)
    ]
    assert any("optimizer.lr=0.2 is left out" in remark for remark in last["remarks"])
    assert set(last["compared"]) < set(last["trials"])


def test_a_store_without_room_for_it_is_refused(tmp_path: Path) -> None:
    now = look_at(tmp_path)
    now.request.results.mkdir()
    (now.request.results / "sweeps").write_text("in its place")
    with pytest.raises(BadInput, match="results"):
        sweep_record.write(now, now.sweeps)
