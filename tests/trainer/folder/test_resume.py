"""A trial goes on with other stages and in another executor as if it had been so all the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small
import torch
from safetensors.torch import load_file
from test_trial import Stop, rows, stop_at, untimed

from trainer.errors import BadInput
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
    ("before", "after", "optimizer"),
    [
        ("two ranks", "four ranks", "adamw"),
        ("four ranks", "two ranks", "muon"),
        ("three emulated", "two ranks", "muon"),
        ("two ranks", "three emulated", "sgd"),
    ],
)
def test_other_stages_go_on_exactly(
    tmp_path: Path, before: str, after: str, optimizer: str
) -> None:
    words = (f"optimizer={optimizer}",)
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
    ],
)
def test_what_would_not_be_the_same_trial_is_refused(tmp_path: Path, word: str, says: str) -> None:
    path = stopped(tmp_path, "three emulated")
    words = [f"resume_from={path}", word]
    if word == "pipeline=sync":
        words.append("correction=error_feedback")
    with pytest.raises(BadInput, match=says):
        run_trial(config(tmp_path, "three emulated", "other", *words))


def test_an_altered_checkpoint_is_refused(tmp_path: Path) -> None:
    path = stopped(tmp_path, "three emulated")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match="truncated or altered"):
        run_trial(config(tmp_path, "three emulated", "other", f"resume_from={path}"))
