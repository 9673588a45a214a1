"""The benchmark of a GPU runs to its end on a CPU, and its tables have what it measured."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from bench.gpu.__main__ import main
from bench.gpu.steps import STEPS, TRIALS

SMALL = (
    *("device=cpu", "scale=micro", "rounds=1", "compile=false", "dtype=bfloat16"),
    *("model.hidden_size=24", "model.intermediate_size=16", "seq_len=16"),
    *("batch_size=4", "pipeline.num_microbatches=4"),
)


def measured(out: Path, parts: str) -> tuple[dict, str]:
    with patch("sys.argv", ["bench.gpu", f"out={out}", f"parts={parts}", *SMALL]):
        assert main() == 0
    return json.loads((out / "measured.json").read_text()), (out / "README.md").read_text()


def test_steps_of_every_kind_are_measured(tmp_path: Path) -> None:
    found, page = measured(tmp_path, "limits,steps")
    rows = {row["step"]: row for row in found["steps"]}
    assert [*rows] == [*STEPS]
    assert all(0 < row["least"] <= row["seconds"] <= row["most"] for row in rows.values())
    assert all(f"| {name} |" in page for name in STEPS)


@pytest.mark.slow
def test_updates_evaluations_and_trials_are_measured(tmp_path: Path) -> None:
    found, page = measured(tmp_path, "updates,evaluation,trials")
    rows = {row["trial"]: row for row in found["trials"]}
    assert [*rows] == [*TRIALS]
    losses = [rows[name]["final_val_loss"] for name in [*TRIALS][:3]]
    assert len({*losses}) == 1, "twice the same trial, and the pipeline of one rank"
    assert page.count("\n| --- |") == 3
