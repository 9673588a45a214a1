"""The benchmark of a GPU runs to its end on a CPU, and its tables have what it measured."""

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from bench.gpu import __main__ as command
from bench.gpu import trials
from bench.gpu.__main__ import main
from bench.gpu.device import STEPS, GPUSetting, Row
from bench.gpu.trials import pair

SMALL = (
    *("device=cpu", "scale=micro", "rounds=1", "compile=false", "dtype=bfloat16"),
    *("model.hidden_size=24", "model.intermediate_size=16", "seq_len=16"),
    *("batch_size=4", "pipeline.num_microbatches=4"),
)
NARROW = tuple(word for word in SMALL if not word.startswith("model."))


def run(out: Path, *words: str) -> int:
    with patch("sys.argv", ["bench.gpu", f"out={out}", *words]):
        return main()


def rows(out: Path) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for line in (out / "measured.jsonl").read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["part"], {})[row["name"]] = row
    return found


def test_steps_of_every_kind_are_measured(tmp_path: Path) -> None:
    assert run(tmp_path, "parts=preflight,limits,steps,checkpoints,fake", *NARROW) == 0
    found, page = rows(tmp_path), (tmp_path / "README.md").read_text()
    assert [*found["steps"]] == [*STEPS]
    assert all(0 < row["least"] <= row["seconds"] <= row["most"] for row in found["steps"].values())
    assert all(f"| {name} |" in page for name in STEPS)
    [saved] = found["checkpoints"].values()
    assert min(saved[key] for key in ("bytes", "copy", "write", "read", "restore")) > 0
    assert page.count("\n| --- |") == 5


def test_a_killed_command_keeps_its_rows_and_a_failed_part_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(setting: GPUSetting) -> Iterator[Row]:
        yield {"name": "first", "tokens_per_second": 1.0}
        raise KeyboardInterrupt

    def failing(setting: GPUSetting) -> Iterator[Row]:
        raise RuntimeError("no\nmemory")

    monkeypatch.setattr(command, "evaluation", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "parts=limits,evaluation", *SMALL)
    with (tmp_path / "measured.jsonl").open("a") as file:
        file.write('{"part": "trials", "na')
    monkeypatch.setattr(command, "beside_fake", failing)
    assert run(tmp_path, "parts=fake,limits", *SMALL) == 1
    page = (tmp_path / "README.md").read_text()
    assert "| first | 1 |" in page
    assert "fake: failed: RuntimeError: no\\nmemory" in page
    assert [*rows(tmp_path)] == ["limits", "evaluation", "fake"], "no line is cut"


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    """Messages, drains and a killed peer, by gloo; one line where there is no second GPU."""
    assert run(tmp_path, "parts=pair", *SMALL) == 0
    names = [*rows(tmp_path)["pair"]]
    assert names[-1].startswith("a killed peer: rank 1 was killed by SIGKILL")
    assert len(names) == 5
    with patch("torch.cuda.device_count", return_value=1):
        [row] = pair(GPUSetting("micro", torch.device("cuda"), 1))
    assert row["said"] == "skipped: takes two GPUs, 1 is there"


@pytest.mark.slow
def test_rehearsals_evaluations_and_trials_are_measured(tmp_path: Path) -> None:
    assert run(tmp_path, "parts=rehearsals,evaluation,trials", *NARROW) == 0
    found = rows(tmp_path)
    assert [*found["rehearsals"]] == [*trials.REHEARSED]
    assert {row["difference"] for row in found["rehearsals"].values()} == {None}
    losses = [found["trials"][name]["final_val_loss"] for name in [*trials.TRIALS][:2]]
    assert len({*losses}) == 1, "the emulation and the pipeline of one rank"
