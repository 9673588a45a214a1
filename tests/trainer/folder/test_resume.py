"""A trial goes on with other stages and in another executor as if it had been so all the time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support import small
from tests.support.trials import Stop, rows, stop_at, untimed
from trainer.base.errors import BadInput
from trainer.config.identity import made_by
from trainer.config.plan import plan_trial
from trainer.folder import checkpoint
from trainer.trial import run_trial

LIKE = (
    "model.num_layers=4",
    "pipeline=pipedream_2bw",
    "correction=error_feedback",
    "pipeline.num_microbatches=4",
    "save_final=true",
)
LAYOUTS = {
    "two ranks": ("runner=pipelined", "pipeline.num_stages=2"),
    "four ranks": ("runner=pipelined", "pipeline.num_stages=4"),
    "three emulated": ("pipeline.num_stages=3",),
}


def config(folder: Path, layout: str, name: str, *words: str) -> dict[str, Any]:
    out = f"out={folder / name}"
    return small.config(folder, *LIKE, *LAYOUTS[layout], out, *words)


def stopped(folder: Path, layout: str, *words: str) -> Path:
    """The checkpoint after 5 updates of a trial that did not go on."""
    with pytest.raises(Stop):
        run_trial(config(folder, layout, "stopped", *words), stop_at(6))
    [path] = (folder / "stopped").glob("checkpoint-000000005-*.pt")
    return path


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("two ranks", "four ranks", ["optimizer=adamw"]),
        ("four ranks", "two ranks", ["optimizer=muon"]),
        ("three emulated", "two ranks", ["optimizer=muon", "dtype=bfloat16"]),
        ("two ranks", "three emulated", ["optimizer=sgd"]),
    ],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_other_stages_go_on_exactly(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    path = stopped(tmp_path, before, *words)
    expected = run_trial(config(tmp_path, after, "whole", *words))
    result = run_trial(config(tmp_path, after, "resumed", *words, f"resume_from={path}"))
    ids = {"trial_id"}
    assert {k: v for k, v in untimed(result).items() if k not in ids} == {
        k: v for k, v in untimed(expected).items() if k not in ids
    }
    assert result["trial_id"] != expected["trial_id"]
    assert rows(tmp_path / "resumed") == rows(tmp_path / "whole")[5:]
    ours, theirs = (load_file(tmp_path / n / "final.safetensors") for n in ("resumed", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("optimizer.lr=0.02", "is of a trial with optimizer="),
        ("pipeline=sync", "has 2 versions, 1 are needed"),
        ("resume_from=nowhere.pt", "must be a checkpoint"),
        ("altered", "truncated or altered"),
    ],
)
def test_what_would_not_be_the_same_trial_is_refused(tmp_path: Path, word: str, says: str) -> None:
    path = stopped(tmp_path, "three emulated")
    words = [f"resume_from={path}", word]
    if word == "pipeline=sync":
        words.append("correction=error_feedback")
    if word == "altered":
        path.write_bytes(path.read_bytes()[:-100])
        words.remove(word)
    with pytest.raises(BadInput, match=says):
        run_trial(config(tmp_path, "three emulated", "other", *words))
    assert not (tmp_path / "other").exists()


def test_the_id_does_not_depend_on_the_attempt_that_saved(tmp_path: Path) -> None:
    """A checkpoint gets another name when its trial is resumed; ids made before stay."""
    ids = set()
    for name in ("000000005-0123456789abcdef", "000000005-000002-0123456789abcdef"):
        path = f"resume_from=elsewhere/checkpoint-{name}.pt"
        ids.add(plan_trial(config(tmp_path, "three emulated", "resumed", path)).trial_id)
    assert len(ids) == 1


def test_it_resumes_from_a_checkpoint_and_an_attempt_of_older_code(tmp_path: Path) -> None:
    """Which had no attempt in the name, and did not note what made them."""
    out = tmp_path / "stopped"
    path = stopped(tmp_path, "three emulated")
    updates, _, digest = path.stem.removeprefix("checkpoint-").split("-")
    path.rename(out / f"checkpoint-{updates}-{digest}.pt")
    noted = out / "attempt-000001.json"
    attempt = json.loads(noted.read_text())
    older = {key: value for key, value in attempt.items() if key not in ("git", "versions")}
    noted.write_text(json.dumps(older))
    result = run_trial(config(tmp_path, "three emulated", "stopped"))
    expected = run_trial(config(tmp_path, "three emulated", "whole"))
    assert untimed(result) == untimed(expected)
    assert rows(out) == rows(tmp_path / "whole")
    first, second = result["attempts"]
    assert (first["from_update"], first["git"]) == (0, None)
    assert (second["from_update"], second["git"]) == (5, result["git"])


def test_a_checkpoint_says_what_made_it(tmp_path: Path) -> None:
    state = checkpoint.load(stopped(tmp_path, "three emulated"))
    assert state["made_by"] == made_by("cpu")
    assert made_by("cpu").keys() == {"git", "versions", "device_name"}
