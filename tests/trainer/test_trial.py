"""A trial is recorded whole and says so, resumes bit for bit, and a divergence is a result."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from pipegap.trainer import rehearsal
from pipegap.trainer.__main__ import main
from pipegap.trainer.base.build import build
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import CODE_ROOT
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.folder import record
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.lr import constant, cosine, inverse_sqrt, linear, wsd
from pipegap.trainer.schedules.proof import check
from pipegap.trainer.schedules.recipes import pipedream, pipedream_2bw
from pipegap.trainer.training import Agenda
from pipegap.trainer.trial import record_failure, run_trial
from tests.support import small_sweep
from tests.support.processes import Refused, python
from tests.support.trials import ASYNC, Stop, ran, rows, stop_at, untimed, wait_for


def test_the_record_is_complete(tmp_path: Path) -> None:
    seen: list[Row] = []
    result = run_trial(small_sweep.config(tmp_path, *ASYNC), seen.append)
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
    config = small_sweep.config(tmp_path, *words, "pipeline.num_microbatches=2")
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
    command = [sys.executable, "-m", "pipegap", "trial", *small_sweep.overrides(tmp_path, *own)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(folder.glob("checkpoint*")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()
    seldom = "checkpoint_every=100"  # from now on
    run_trial(small_sweep.config(tmp_path, *own, seldom))
    expected = run_trial(small_sweep.config(tmp_path, *words, seldom, f"out={tmp_path / 'whole'}"))
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
        run_trial(small_sweep.config(tmp_path, *words, f"out={tmp_path / name}"))

    train("straight")
    assert sorted(sets("straight")) == [f"00000000{done}.safetensors" for done in (6, 8, 9)]
    write = getattr(record, step)

    def killed(folder: Path, number: int, *more: object, **options: object) -> None:
        if number == num_updates:
            raise Killed
        write(folder, number, *more, **options)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(record, step, killed)
        train("killed")
    if num_updates < 9:  # of an attempt that saved otherwise
        (tmp_path / f"killed/weights/{num_updates - 1:09d}.safetensors").touch()
    train("killed")
    assert sets("killed") == sets("straight")


def test_a_folder_holds_one_trial(tmp_path: Path) -> None:
    out = f"out={tmp_path / 'one'}"
    run_trial(small_sweep.config(tmp_path, out))
    with pytest.raises(BadInput, match="choose an empty folder"):
        run_trial(small_sweep.config(tmp_path, out, "seed=1"))


@pytest.mark.parametrize("pipeline", ["sync", "pipedream_2bw"])
def test_a_divergence_is_a_result(tmp_path: Path, pipeline: str) -> None:
    words = (f"pipeline={pipeline}", "optimizer=sgd", "optimizer.lr=1e30", "clip_norm=null")
    result = run_trial(small_sweep.config(tmp_path, *words))
    assert result["status"] == "diverged"
    assert result["final_val_loss"] is None
    written = rows(tmp_path / "results" / "trials" / result["trial_id"])
    assert len(written) == result["diverged_at"], "the bad update was not applied"
    assert all(math.isfinite(row["train_loss"]) for row in written)


def test_a_hopeless_validation_loss_is_a_divergence(tmp_path: Path) -> None:
    words = ("optimizer=sgd", "optimizer.lr=300", "clip_norm=1", "num_updates=40")
    result = run_trial(small_sweep.config(tmp_path, *words))
    assert result["status"] == "diverged"
    written = rows(tmp_path / "results" / "trials" / result["trial_id"])
    assert written[-1]["val_loss"] > math.log(257) + 1
    assert written[-1]["update"] == result["diverged_at"]


def test_a_failure_is_recorded_with_its_traceback(tmp_path: Path) -> None:
    def broken(row: Row) -> None:
        raise RuntimeError("the disk is full")

    config = small_sweep.config(tmp_path, f"out={tmp_path / 'one'}")
    with pytest.raises(RuntimeError):
        run_trial(config, broken)
    recorded = json.loads((tmp_path / "one" / "result.json").read_text())
    assert recorded["status"] == "failed"
    assert "the disk is full" in recorded["error"]
    assert run_trial(config)["status"] == "completed", "a failed trial runs again when asked"


def test_a_failure_is_never_recorded_over_a_result(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path, "num_updates=2")
    expected = run_trial(config)
    record_failure(config, "another driver gave up")
    assert run_trial(config, stop_at(0)) == expected


def test_bf16_leaves_train_an_fp32_master(tmp_path: Path) -> None:
    result = run_trial(small_sweep.config(tmp_path, *ASYNC, "dtype=bfloat16"))
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
    words = small_sweep.overrides(tmp_path, "num_updates=2")
    assert main(words) == 0
    ran = capsys.readouterr().out
    assert ran.startswith("completed trial ")
    assert main(words) == 0
    assert capsys.readouterr().out == f"done before, not run: {ran}"


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(
    tmp_path: Path, refused: Refused
) -> None:
    words = small_sweep.overrides(tmp_path, "out=/proc/trial")
    assert refused(lambda: main(words)).startswith("pipegap trial: out=/proc/trial: ")


@pytest.mark.parametrize("package", ["trainer", "sweeps", "analysis"])
def test_a_checkout_has_no_second_name_for_a_package(package: str) -> None:
    for words in (["-c", f"import {package}"], ["-m", package]):
        done = python(*words, cwd=CODE_ROOT)
        assert done.returncode == 1
        assert f"its packages have one name: import pipegap.{package}" in done.stderr


# A trial drains wherever its schedule changes; learning-rate factors against their formulas.

T = 12
EVERY, MAYBE = st.integers(1, 2 * T), st.none() | st.integers(1, 2 * T)


@given(
    start=st.integers(0, 5),
    cooldown=st.integers(0, 5),
    eval_every=EVERY,
    checkpoint_every=EVERY,
    compare_every=MAYBE,
    num_done=st.integers(0, T - 1),
)
@pytest.mark.parametrize("make", [pipedream_2bw, pipedream])
def test_what_runs_between_two_drains_can_run(
    make: type,
    start: int,
    cooldown: int,
    eval_every: int,
    checkpoint_every: int,
    compare_every: int | None,
    num_done: int,
) -> None:
    phases = {"synchronous_start": start, "synchronous_cooldown": cooldown}
    schedule = make(T, num_stages=3, num_microbatches=2, **phases)
    agenda = Agenda(T, schedule.phases, eval_every, checkpoint_every, compare_every)
    drains = [*agenda.drains(num_done)]
    assert drains[-1] == T
    for first, last in pairwise([num_done, *drains]):
        check(schedule.operations(first, last), schedule.lags, first)


def test_drains_are_counted_as_they_are_needed() -> None:
    """All drains of a billion updates would take all memory before the first update."""
    drains = Agenda(10**9, (0, 10**9), 7, 3, 1).drains(num_done=4)
    assert [*islice(drains, 3)] == [5, 6, 7]


@pytest.mark.parametrize("runner", ["emulated", "pipelined"])
def test_a_trial_drains_before_its_cooldown(tmp_path: Path, runner: str) -> None:
    """With no other reason to drain there; the last three gradients are fresh."""
    words = (
        *("pipeline=pipedream_2bw", "pipeline.num_stages=2", "pipeline.num_microbatches=2"),
        *("eval_every=100", "checkpoint_every=100", "timeout=60"),
    )
    cooled = ("pipeline.synchronous_cooldown=3", f"runner={runner}")
    plain, fresh_at_the_end = (
        [row["train_loss"] for row in ran(tmp_path, name, *words, *more)[1]]
        for name, more in (("plain", ()), ("cooled", cooled))
    )
    assert len(fresh_at_the_end) == T
    assert fresh_at_the_end[:9] == plain[:9]
    assert fresh_at_the_end[9] != plain[9]


NUM = 100


def test_warm_up_is_never_zero_and_ends_at_the_peak() -> None:
    for factor in (
        cosine(NUM, warmup=0.1, final=0.1),
        linear(NUM, warmup=0.1, final=0.1),
        wsd(NUM, warmup=0.1, decay=0.2, final=0.1),
        constant(NUM, warmup=0.1),
        inverse_sqrt(NUM, warmup=0.1),
    ):
        assert [factor(t) for t in range(10)] == pytest.approx([(t + 1) / 10 for t in range(10)])
        assert max(factor(t) for t in range(NUM)) == 1


def test_decays() -> None:
    half = 10 + 89 / 2
    assert cosine(NUM, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert cosine(NUM, warmup=0.1, final=0.1)(round(half)) == pytest.approx(
        0.1 + 0.9 * (1 + math.cos(math.pi * (round(half) - 10) / 89)) / 2
    )
    assert linear(NUM, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert wsd(NUM, warmup=0.1, decay=0.2, final=0.0)(80) == 1
    assert wsd(NUM, warmup=0.1, decay=0.2, final=0.0)(99) == pytest.approx(0)
    assert constant(NUM, warmup=0.0)(99) == 1
    assert inverse_sqrt(NUM, warmup=0.1)(39) == pytest.approx(0.5)


# The first updates of a trial, straight through and with a stop: equal, and seen where not.

EF = ("pipeline=pipedream_2bw", "correction=error_feedback", "dtype=bfloat16")


def test_a_stop_and_a_resume_change_no_bit(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path, *EF)
    rehearsal.begin(config, tmp_path / "out")
    found = rehearsal.resume(config, tmp_path / "out")
    assert (found.status, found.stopped_after, found.difference) == ("completed", 3, None)
    rows = rehearsal._rows(tmp_path / "out" / rehearsal.STOPPED)
    assert ["val_loss" in row for row in rows] == [False, False, True, False, False, True]
    tokens = config["batch_size"] * config["seq_len"]
    straight = rehearsal._rows(tmp_path / "out" / rehearsal.STRAIGHT)
    seconds = sum(tokens / row["tokens_per_second"] for row in straight[3:])  # evaluated before
    assert found.tokens_per_second == pytest.approx(3 * tokens / seconds)


@pytest.mark.parametrize(("num_windows", "expected"), [(7, 4 + 3), (8, 4), (3, 3)])
def test_it_evaluates_a_whole_batch_and_the_last_one(
    tmp_path: Path, num_windows: int, expected: int
) -> None:
    rows = small_sweep.config(tmp_path)["data"]
    whole = build(rows).open().validation
    seq_len = (len(whole) - 1) // num_windows
    found = rehearsal.Excerpt(source=rows, path=None, rows=4, seq_len=seq_len).open()
    assert len(found.validation) == expected * seq_len + 1
    assert (found.validation.read(0, 9) == whole.read(0, 9)).all()


def test_one_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, as on a GPU, and not again when the trial stops right after it."""
    waited, save = [], TrialFolder.save

    def saved(folder: TrialFolder, number: int, state: Row, wait: bool, **options: bool) -> None:
        waited.append((number, wait))
        save(folder, number, state, wait=False, **options)

    monkeypatch.setattr(TrialFolder, "save", saved)
    config = small_sweep.config(tmp_path, *EF)
    rehearsal.begin(config, tmp_path / "out")
    assert rehearsal.resume(config, tmp_path / "out").stopped_after == 3
    assert waited == [(3, True)], "a CPU waits"


def test_a_rank_of_a_true_pipeline_too(tmp_path: Path) -> None:
    """Ranks hear that they shall stop when they hear it; they may be at their end before."""
    config = small_sweep.config(tmp_path, *EF, "runner=pipelined", "pipeline.num_stages=2")
    rehearsal.begin(config, tmp_path / "out")
    found = rehearsal.resume(config, tmp_path / "out")
    assert found.difference is None
    assert found.stopped_after is None or 3 <= found.stopped_after < rehearsal.UPDATES


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_what_a_checkpoint_does_not_hold_is_seen(
    tmp_path: Path, deterministic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume that forgets Error Feedback's last update makes another gradient at update 3.
    Where a trial need not repeat its numbers, nothing is compared."""
    config = small_sweep.config(tmp_path, *EF, f"deterministic={deterministic}")
    rehearsal.begin(config, tmp_path / "out")
    monkeypatch.setattr(ErrorFeedback, "restore", lambda self, state: None)
    difference = rehearsal.resume(config, tmp_path / "out").difference
    assert ("of update" in str(difference)) == (deterministic == "true")


def test_what_cannot_run_says_so(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path)
    with pytest.raises(BadInput, match="device=cuda"):
        rehearsal.begin({**config, "device": "cuda"}, tmp_path / "out")
