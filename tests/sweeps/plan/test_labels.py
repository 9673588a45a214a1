"""Every request of a sweep has a label of its own in a store, and so a record and a report."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.files import FileStore
from tests.support import small

SWEEP = """\
grid: {optimizer: [sgd]}
arms: {sync: [pipeline=sync], delay: [pipeline=pipedream_2bw]}
seeds: [0, 1]
"""
LABEL = "mine-few_updates"


def words(folder: Path, *more: str, content: str = SWEEP) -> list[str]:
    (folder / "mine.yaml").write_text(content)
    return [f"sweep={folder / 'mine.yaml'}", *small.overrides(folder), *more]


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
        asked(words(tmp_path, *more)).sweeps[0].asked.request
        for more in ([], ["tune.optimizer.lr=[1,2]", "tuning.seed=9"])
    )
    assert plain == "5bb0c7a2d62026fa"
    assert tuned != asked(words(tmp_path, "tune.optimizer.lr=[1,2]")).sweeps[0].asked.request


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
    content = SWEEP
    if word.startswith("early_stop"):  # only a file can say it
        content, more = SWEEP + word.replace("=", ": ", 1), []
    else:
        more = [word]
    assert begin(words(tmp_path)) == LABEL
    first = record(tmp_path, LABEL)
    assert begin(words(tmp_path, *more, content=content)) == f"{LABEL}-2"
    assert record(tmp_path, LABEL) == first
    second = record(tmp_path, f"{LABEL}-2")
    assert (second["sweep"], second["label"]) == ("mine", f"{LABEL}-2")
    assert len(second["trials"]) == num_trials
    assert begin(words(tmp_path)) == LABEL  # each finds its own again
    assert begin(words(tmp_path, *more, content=content)) == f"{LABEL}-2"
    assert begin(words(tmp_path, "num_updates=9")) == f"{LABEL}-3"
    assert {trial.sweeps for trial in asked(words(tmp_path, "num_updates=9")).planned} == {
        (f"{LABEL}-3",)
    }


@pytest.mark.parametrize(
    "word", ["gpus=4", "tracking=none", "first_trial=false", "scale=few_updates", "seeds=[0, 1]"]
)
def test_words_that_ask_for_no_other_trials_are_the_same_request(tmp_path: Path, word: str) -> None:
    begin(words(tmp_path))
    assert begin(words(tmp_path, word)) == LABEL


def test_a_record_of_an_earlier_version_is_known_by_its_words(tmp_path: Path) -> None:
    begin(words(tmp_path))
    path = tmp_path / f"results/sweeps/{LABEL}.json"
    content = record(tmp_path, LABEL)
    del content["request"]
    path.write_text(json.dumps(content))
    assert begin(words(tmp_path, "seeds=[0]")) == f"{LABEL}-2"
    path.write_text(json.dumps(content))
    assert begin(words(tmp_path)) == LABEL


def test_a_label_that_another_driver_takes_meanwhile_is_not_taken_from_it(tmp_path: Path) -> None:
    one, other = asked(words(tmp_path)), asked(words(tmp_path, "seeds=[0]"))
    sweep_record.write(one, one.sweeps)
    with pytest.raises(BadInput, match="sweep=mine: was begun with other words just now"):
        sweep_record.write(other, other.sweeps)
    assert len(record(tmp_path, LABEL)["trials"]) == 4
    sweep_record.write(one, one.sweeps)  # its own rounds go on


def test_names_of_any_letters_and_length_have_labels_of_their_own(tmp_path: Path) -> None:
    """Which also are tags of wandb, of 64 letters at most."""
    names = ["実験", "研究", "écarts", "ècarts", "carts", "x" * 250, "x" * 249, "a b", "a.b"]
    for name in names:
        (tmp_path / f"{name}.yaml").write_text(SWEEP)
    files = ",".join(str(tmp_path / f"{name}.yaml") for name in names)
    labels = parse_request([f"sweep={files}", *small.overrides(tmp_path)]).sweeps
    assert len(labels) == len(names)
    assert all(label.isascii() and len(label) <= 60 for label in labels)
    assert {"carts-few_updates", "a-b-few_updates", "a.b-few_updates"} < labels.keys()


def test_a_plan_names_the_other_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(words(tmp_path, "seeds=[0]"))
    assert main([*words(tmp_path), "dry_run=true"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("label")]
    assert line.startswith(f"label     {LABEL}-2; other words have other labels: {LABEL} is sweep=")
    assert line.endswith(" 'seeds=[0]'")


def test_status_shows_what_was_asked_and_never_another_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its overview repeats the words, and they work as they stand."""
    begin(words(tmp_path, "seeds=[0]"))
    assert main(["status", *words(tmp_path)]) == 2
    assert "sweep=mine: was run here with other words" in (error := capsys.readouterr().err)
    results = f"results={tmp_path / 'results'}"
    assert main(["status", results]) == 0
    command = capsys.readouterr().out.splitlines()[1].partition("pipegap status ")[2]
    assert f"pipegap status {command}" in error
    assert main(["status", *shlex.split(command)]) == 0
    assert f"{LABEL}: 0 of 2 trials ended" in capsys.readouterr().out
