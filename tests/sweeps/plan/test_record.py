"""The record of a sweep says what the last command planned, while it runs and when it is done."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.files import FileStore
from tests.support import small_sweep
from tests.support.trials import leave_finished

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
    given = [word for word in small_sweep.overrides(folder) if not word.startswith("optimizer.lr")]
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
    tokens = trial.plan.tokens
    speed = {"tokens": tokens, "tokens_per_second": tokens / 2}
    leave_finished(trial.folder, trial.config, final_val_loss=loss, **speed)


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


# Every request of a sweep has a label of its own in a store, and so a record and a report.

SWEEP_OF_LABELS = """\
grid: {optimizer: [sgd]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}
seeds: [0, 1]
"""
LABEL = "mine-few_updates"


def words_of_labels(folder: Path, *more: str, content: str = SWEEP_OF_LABELS) -> list[str]:
    (folder / "mine.yaml").write_text(content)
    return [f"sweep={folder / 'mine.yaml'}", *small_sweep.overrides(folder), *more]


def asked(given: list[str]) -> Round:
    request = parse_request(given)
    return Round.first(request, FileStore(request.results))


def begin(given: list[str]) -> str:
    """Write the record of what is asked for; return its label."""
    now = asked(given)
    sweep_record.write(now, now.sweeps)
    return now.title


def record(folder: Path, label: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"results/sweeps/{label}.json").read_text())
    return content


def test_how_to_tune_tells_requests_apart_and_is_younger_than_their_hashes(tmp_path: Path) -> None:
    """The hash of a request that does not say it is as before there was such a key."""
    plain, tuned = (
        asked(words_of_labels(tmp_path, *more)).sweeps[0].request.digest
        for more in ([], ["tune.optimizer.lr=[1,2]", "tuning.seed=9"])
    )
    assert plain == "5bb0c7a2d62026fa"
    assert (
        tuned
        != asked(words_of_labels(tmp_path, "tune.optimizer.lr=[1,2]")).sweeps[0].request.digest
    )


@pytest.mark.parametrize(
    ("word", "num_trials"),
    [
        ("seeds=[0]", 2),  # less
        ("seeds=[0,1,2]", 6),  # more
        ("grid.optimizer=[sgd,adamw]", 8),  # more
        ("num_updates=7", 4),  # other trials
        ("early_stop={margin: 1}", 4),  # the same trials, by another rule
    ],
)
def test_other_words_leave_the_first_record_as_it_is(
    tmp_path: Path, word: str, num_trials: int
) -> None:
    content = SWEEP_OF_LABELS
    if word.startswith("early_stop"):  # only a file can say it
        content, more = SWEEP_OF_LABELS + word.replace("=", ": ", 1), []
    else:
        more = [word]
    assert begin(words_of_labels(tmp_path)) == LABEL
    first = record(tmp_path, LABEL)
    assert begin(words_of_labels(tmp_path, *more, content=content)) == f"{LABEL}-2"
    assert record(tmp_path, LABEL) == first
    second = record(tmp_path, f"{LABEL}-2")
    assert (second["sweep"], second["label"]) == ("mine", f"{LABEL}-2")
    assert len(second["trials"]) == num_trials
    assert begin(words_of_labels(tmp_path)) == LABEL  # each finds its own again
    assert begin(words_of_labels(tmp_path, *more, content=content)) == f"{LABEL}-2"
    assert begin(words_of_labels(tmp_path, "num_updates=9")) == f"{LABEL}-3"
    assert {
        trial.sweeps for trial in asked(words_of_labels(tmp_path, "num_updates=9")).planned
    } == {(f"{LABEL}-3",)}


@pytest.mark.parametrize(
    "word", ["gpus=4", "tracking=none", "first_trial=false", "scale=few_updates", "seeds=[0, 1]"]
)
def test_words_that_ask_for_no_other_trials_are_the_same_request(tmp_path: Path, word: str) -> None:
    begin(words_of_labels(tmp_path))
    assert begin(words_of_labels(tmp_path, word)) == LABEL


def test_a_record_of_an_earlier_version_is_known_by_its_words(tmp_path: Path) -> None:
    begin(words_of_labels(tmp_path))
    path = tmp_path / f"results/sweeps/{LABEL}.json"
    content = record(tmp_path, LABEL)
    del content["request"]
    path.write_text(json.dumps(content))
    assert begin(words_of_labels(tmp_path, "seeds=[0]")) == f"{LABEL}-2"
    path.write_text(json.dumps(content))
    assert begin(words_of_labels(tmp_path)) == LABEL


def test_a_label_that_another_driver_takes_meanwhile_is_not_taken_from_it(tmp_path: Path) -> None:
    one, other = asked(words_of_labels(tmp_path)), asked(words_of_labels(tmp_path, "seeds=[0]"))
    sweep_record.write(one, one.sweeps)
    with pytest.raises(BadInput, match="sweep=mine: was begun with other words just now"):
        sweep_record.write(other, other.sweeps)
    assert len(record(tmp_path, LABEL)["trials"]) == 4
    sweep_record.write(one, one.sweeps)  # its own rounds go on


def test_names_of_any_letters_and_length_have_labels_of_their_own(tmp_path: Path) -> None:
    """Which also are tags of wandb, of 64 letters at most."""
    names = ["実験", "研究", "écarts", "ècarts", "carts", "x" * 250, "x" * 249, "a b", "a.b"]
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(SWEEP_OF_LABELS)
    files = ",".join(str(tmp_path / f"{name}.yaml") for name in names)
    labels = parse_request([f"sweep={files}", *small_sweep.overrides(tmp_path)]).sweeps
    assert len(labels) == len(names)
    assert all(label.isascii() and len(label) <= 60 for label in labels)
    assert {"carts-few_updates", "a-b-few_updates", "a.b-few_updates"} < labels.keys()


def test_a_plan_names_the_other_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(words_of_labels(tmp_path, "seeds=[0]"))
    assert main([*words_of_labels(tmp_path), "dry_run=true"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("label")]
    assert line.startswith(f"label     {LABEL}-2; other words have other labels: {LABEL} is sweep=")
    assert line.endswith(" 'seeds=[0]'")


def test_status_shows_what_was_asked_and_never_another_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its overview repeats the words, and they work as they stand."""
    begin(words_of_labels(tmp_path, "seeds=[0]"))
    assert main(["status", *words_of_labels(tmp_path)]) == 2
    assert "sweep=mine: was run here with other words" in (error := capsys.readouterr().err)
    results = f"results={tmp_path / 'results'}"
    assert main(["status", results]) == 0
    command = capsys.readouterr().out.splitlines()[1].partition("pipegap status ")[2]
    assert f"pipegap status {command}" in error
    assert main(["status", *shlex.split(command)]) == 0
    assert f"{LABEL}: 0 of 2 trials ended" in capsys.readouterr().out
