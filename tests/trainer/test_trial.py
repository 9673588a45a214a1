"""A trial is recorded whole and says so, resumes bit for bit, and a divergence is a result."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipegap.trainer.__main__ import main
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.folder import checkpoint
from pipegap.trainer.folder.result import Row
from pipegap.trainer.trial import record_failure, run_trial
from tests.support import small
from tests.support.processes import python
from tests.support.refusals import Refused
from tests.support.trials import ASYNC, Stop, ran, rows, stop_at, untimed, wait_for


def test_the_record_is_complete(tmp_path: Path) -> None:
    seen: list[Row] = []
    result = run_trial(small.config(tmp_path, *ASYNC), seen.append)
    folder = tmp_path / "results" / "trials" / result["trial_id"]
    assert json.loads((folder / "result.json").read_text()) == result
    assert json.loads((folder / "config.json").read_text())["num_updates"] == 12
    assert [row["update"] for row in rows(folder)] == list(range(12)) == [r["update"] for r in seen]
    assert [row["update"] for row in seen if "val_loss" in row] == [3, 7, 11]
    assert seen[-1]["val_loss"] == result["final_val_loss"] < seen[3]["val_loss"]
    assert result["status"] == "completed"
    assert result["delays"] == [1]
    assert result["tokens"] == 12 * 4 * 16
    assert 0 < result["epochs"] < 1
    assert result["tokens_per_second"] > 0
    assert result["peak_memory_bytes"] > 2**20
    assert not list(folder.glob("checkpoint*")), "a finished trial keeps no checkpoint"
    assert seen[0]["lr"] == 0.01, "10 % of 12 updates is a warm-up of one"
    assert seen[-1]["lr"] == pytest.approx(0.001)


def test_a_stopped_trial_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Two stages, so that slots, tied copies and the last update are in the checkpoint; Muon has
    AdamW beside it."""
    words = (*ASYNC, "optimizer=muon", "pipeline.num_stages=2", "batch_size=4")
    config = small.config(tmp_path, *words, "pipeline.num_microbatches=2")
    whole = tmp_path / "whole"
    expected = run_trial({**config, "out": str(whole)})
    for stop in (2, 5, 8):
        cut = tmp_path / f"cut at {stop}"
        with pytest.raises(Stop):
            run_trial({**config, "out": str(cut)}, stop_at(stop))
        assert len(list(cut.glob("checkpoint*"))) == (stop >= 5)
        result = run_trial({**config, "out": str(cut)})
        assert untimed(result) == untimed(expected)
        assert rows(cut) == rows(whole)
        ours, theirs = (load_file(folder / "final.safetensors") for folder in (cut, whole))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    words = ("num_updates=120", "eval_every=50")
    folder = tmp_path / "killed"
    own = (*words, "checkpoint_every=7", f"out={folder}")
    command = [sys.executable, "-m", "pipegap", "trial", *small.overrides(tmp_path, *own)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(folder.glob("checkpoint*")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()
    seldom = "checkpoint_every=100"  # from now on
    run_trial(small.config(tmp_path, *own, seldom))
    expected = run_trial(small.config(tmp_path, *words, seldom, f"out={tmp_path / 'whole'}"))
    assert json.loads((folder / "result.json").read_text())["wall_seconds"] > 0
    assert rows(folder) == rows(tmp_path / "whole")
    assert expected["status"] == "completed"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["keep_weights", "save"])
@pytest.mark.parametrize("num_updates", [4, 8, 9])
def test_killed_beside_a_set_of_weights_it_keeps_those_of_a_straight_run(
    step: str, num_updates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a set of weights, and between it and its checkpoint; there is none after update 9."""
    words = (*ASYNC, "num_updates=9", "checkpoint_every=2", "save_last=3")

    def sets(name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / name / "weights").iterdir()}

    def train(name: str) -> None:
        run_trial(small.config(tmp_path, *words, f"out={tmp_path / name}"))

    train("straight")
    assert sorted(sets("straight")) == [f"00000000{done}.safetensors" for done in (6, 8, 9)]
    write = getattr(checkpoint, step)

    def killed(folder: Path, number: int, *more: object, **options: object) -> None:
        if number == num_updates:
            raise Killed
        write(folder, number, *more, **options)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(checkpoint, step, killed)
        train("killed")
    if num_updates < 9:  # of an attempt that saved otherwise
        (tmp_path / f"killed/weights/{num_updates - 1:09d}.safetensors").touch()
    train("killed")
    assert sets("killed") == sets("straight")


def test_a_folder_holds_one_trial(tmp_path: Path) -> None:
    out = f"out={tmp_path / 'one'}"
    run_trial(small.config(tmp_path, out))
    with pytest.raises(BadInput, match="choose an empty folder"):
        run_trial(small.config(tmp_path, out, "seed=1"))


@pytest.mark.parametrize("pipeline", ["sync", "pipedream_2bw"])
def test_a_divergence_is_a_result(tmp_path: Path, pipeline: str) -> None:
    words = (f"pipeline={pipeline}", "optimizer=sgd", "optimizer.lr=1e30", "clip_norm=null")
    result = run_trial(small.config(tmp_path, *words))
    assert result["status"] == "diverged"
    assert result["final_val_loss"] is None
    written = rows(tmp_path / "results" / "trials" / result["trial_id"])
    assert len(written) == result["diverged_at"], "the bad update was not applied"
    assert all(math.isfinite(row["train_loss"]) for row in written)


def test_a_hopeless_validation_loss_is_a_divergence(tmp_path: Path) -> None:
    words = ("optimizer=sgd", "optimizer.lr=300", "clip_norm=1", "num_updates=40")
    result = run_trial(small.config(tmp_path, *words))
    assert result["status"] == "diverged"
    written = rows(tmp_path / "results" / "trials" / result["trial_id"])
    assert written[-1]["val_loss"] > math.log(257) + 1
    assert written[-1]["update"] == result["diverged_at"]


def test_a_failure_is_recorded_with_its_traceback(tmp_path: Path) -> None:
    def broken(row: Row) -> None:
        raise RuntimeError("the disk is full")

    config = small.config(tmp_path, f"out={tmp_path / 'one'}")
    with pytest.raises(RuntimeError):
        run_trial(config, broken)
    recorded = json.loads((tmp_path / "one" / "result.json").read_text())
    assert recorded["status"] == "failed"
    assert "the disk is full" in recorded["error"]
    assert run_trial(config)["status"] == "completed", "a failed trial runs again when asked"


def test_a_failure_is_never_recorded_over_a_result(tmp_path: Path) -> None:
    config = small.config(tmp_path, "num_updates=2")
    expected = run_trial(config)
    record_failure(config, "another driver gave up")
    assert run_trial(config, stop_at(0)) == expected


def test_bf16_leaves_train_an_fp32_master(tmp_path: Path) -> None:
    result = run_trial(small.config(tmp_path, *ASYNC, "dtype=bfloat16"))
    final = load_file(tmp_path / "results" / "trials" / result["trial_id"] / "final.safetensors")
    assert all(weight.dtype == torch.float32 for weight in final.values())
    assert result["final_val_loss"] < math.log(257)


Plain = tuple[Row, list[Row]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """Result and rows of a delayed trial."""
    return ran(tmp_path_factory.mktemp("plain"), "a", *ASYNC)


def test_an_evaluation_in_bf16_changes_no_update(plain: Plain, tmp_path: Path) -> None:
    result, written = ran(tmp_path, "b", *ASYNC, "eval_dtype=bfloat16")
    assert result["final_val_loss"] != plain[0]["final_val_loss"]
    assert result["final_val_loss"] == pytest.approx(plain[0]["final_val_loss"], rel=2e-3)
    assert [row["train_loss"] for row in written] == [row["train_loss"] for row in plain[1]]


def test_evaluations_before_the_last_see_as_many_tokens_as_asked(
    plain: Plain, tmp_path: Path
) -> None:
    _, written = ran(tmp_path, "b", *ASYNC, "eval_tokens=32")
    whole, some = ([row.get("val_loss") for row in trial] for trial in (plain[1], written))
    assert [loss is None for loss in whole] == [loss is None for loss in some]
    assert [one != other for one, other in zip(whole, some, strict=True)].count(True) == 2
    assert some[-1] == plain[0]["final_val_loss"]


@pytest.mark.parametrize("every", [1, 100])
def test_how_often_it_saves_changes_no_loss(plain: Plain, tmp_path: Path, every: int) -> None:
    assert ran(tmp_path, "b", *ASYNC, f"checkpoint_every={every}") == plain


@pytest.mark.parametrize(
    "key", ["optimizer.fused=true", pytest.param("compile=true", marks=pytest.mark.slow)]
)
def test_faster_ways_compute_the_same(plain: Plain, tmp_path: Path, key: str) -> None:
    if key == "compile=true" and shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on the CPU: g++ is not installed")
    faster, _ = ran(tmp_path, "b", *ASYNC, key)
    assert faster["final_val_loss"] == pytest.approx(plain[0]["final_val_loss"], rel=1e-4)
    assert faster["trial_id"] != plain[0]["trial_id"]


def test_a_compiled_update_without_a_compiler_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        BadInput, match=r"^compile=update: needs a C\+\+ compiler, no-such-compiler"
    ):
        ran(tmp_path, "a", *ASYNC, "compile=update")
    assert not [*tmp_path.rglob("result.json")]


def test_a_finished_trial_does_not_look_as_if_it_had_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = small.overrides(tmp_path, "num_updates=2")
    assert main(words) == 0
    ran = capsys.readouterr().out
    assert ran.startswith("completed trial ")
    assert main(words) == 0
    assert capsys.readouterr().out == f"done before, not run: {ran}"


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, refused: Refused
) -> None:
    words = small.overrides(tmp_path, "out=/proc/trial")
    assert refused(lambda: main(words)).startswith("pipegap trial: out=/proc/trial: ")


@pytest.mark.parametrize("package", ["trainer", "sweeps", "analysis"])
def test_a_checkout_has_no_second_name_for_a_package(package: str) -> None:
    for words in (["-c", f"import {package}"], ["-m", package]):
        done = python(*words, cwd=CODE_ROOT)
        assert done.returncode == 1
        assert f"its packages have one name: import pipegap.{package}" in done.stderr
