"""SIGTERM, Ctrl-C and a closed terminal save a checkpoint; the same command goes on, and nothing
is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.base.cli import end_with, stopping
from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.result import Row
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.processes import alive, children
from tests.support.trials import main_while, rows, untimed, wait_for

ARM = ("pipeline=pipedream_2bw", "correction=error_feedback", "checkpoint_every=100000")
GANG = ("runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
RUNNERS = {"emulated": (), "pipelined": GANG}


@pytest.mark.long
@pytest.mark.parametrize(
    ("runner", "how"),
    [
        pytest.param("emulated", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("emulated", signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param("pipelined", signal.SIGTERM, marks=pytest.mark.slow),
        ("pipelined", signal.SIGINT),
        pytest.param("pipelined", signal.SIGHUP, marks=pytest.mark.slow),  # see the terminal
    ],
)
def test_a_signal_saves_a_checkpoint(runner: str, how: signal.Signals, tmp_path: Path) -> None:
    words = (*ARM, *RUNNERS[runner], "num_updates=4000", "eval_every=100")
    out = tmp_path / "trial"
    trial = ["-m", "pipegap", "trial", *small.overrides(tmp_path, *words), f"out={out}"]
    command = [sys.executable, *trial]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stderr=pipe, text=True, start_new_session=True) as process:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 100)
        below = [pid for child in children(process.pid) for pid in children(child)]
        os.killpg(process.pid, how)  # as a terminal does: the ranks get it too
        _, error = process.communicate(timeout=60)
    assert len(below) == (2 if runner == "pipelined" else 0)
    wait_for(lambda: not any(map(alive, below)))
    assert process.returncode == 143, error
    assert_saved(out, error)


def test_sigterm_saves_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process."""
    out = tmp_path / "trial"
    words = small.overrides(tmp_path, *ARM, "num_updates=4000", "eval_every=100", f"out={out}")

    def ask() -> None:
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) > 20)
        os.kill(os.getpid(), signal.SIGTERM)

    assert main_while(words, ask) == 143
    assert_saved(out, capsys.readouterr().err)


def assert_saved(out: Path, error: str) -> None:
    [checkpoint] = out.glob("checkpoint-*.pt")
    saved = int(checkpoint.name.split("-")[1])
    assert f"stopped after update {saved}" in error
    assert len(rows(out)) == saved
    assert json.loads(lease.attempts(out)[-1].read_text())["ended"] == "Stopped"


ON_A_TERMINAL = """
import os, sys
os.login_tty(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@pytest.mark.long
@pytest.mark.parametrize("runner", [pytest.param("emulated", marks=pytest.mark.slow), "pipelined"])
def test_a_terminal_that_is_closed_and_takes_no_word_more(runner: str, tmp_path: Path) -> None:
    words = (*ARM, *RUNNERS[runner], "num_updates=4000", "eval_every=1")
    out = tmp_path / "trial"
    ours, theirs = os.openpty()
    trainer = ["-m", "pipegap", "trial", *small.overrides(tmp_path, *words), f"out={out}"]
    command = [sys.executable, "-c", ON_A_TERMINAL, str(theirs), *trainer]
    with subprocess.Popen(command, pass_fds=[theirs]) as process:
        os.close(theirs)
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 20)
        os.close(ours)
        assert process.wait(timeout=60) == 143
    assert len([*out.glob("checkpoint-*.pt")]) == 1
    assert json.loads(lease.attempts(out)[-1].read_text())["ended"] == "Stopped"
    assert not (out / "result.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.3, marks=pytest.mark.slow)])
def test_an_early_ctrl_c_does_not_reach_the_ranks(seconds: float, tmp_path: Path) -> None:
    """What starts them still imports torch, and has no say in what a signal does to it."""
    words = small.overrides(tmp_path, *ARM, *GANG, "num_updates=4000", f"out={tmp_path / 'out'}")
    command, pipe = [sys.executable, "-m", "pipegap", "trial", *words], subprocess.PIPE
    with subprocess.Popen(command, stderr=pipe, text=True, start_new_session=True) as process:
        wait_for(lambda: len(children(process.pid)) >= 2)  # multiprocessing's own
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 143, error
    said = [line for line in error.splitlines() if not line.startswith("update ")]
    assert len(said) == 2, error
    assert said[0].startswith("SIGINT: ")
    assert said[1].startswith("pipegap trial: stopped after update ")


def test_ctrl_c_before_the_trial_starts_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here while it composes the config."""

    def interrupted(words: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipegap.trainer.config.compose.compose", interrupted)
    assert main([]) == 130
    said = capsys.readouterr()
    assert said.err == "pipegap trial: interrupted: the same command goes on\n"


def test_in_a_thread_no_signal_asks_and_none_is_needed() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    asked: list[bool] = []

    def run() -> None:
        with stopping("stops") as asked_to_stop:
            asked.append(asked_to_stop())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert asked == [False]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_ctrl_c_outside_of_a_command_s_own_care_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        end_with(interrupted)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted: the same command goes on\n"


@pytest.mark.parametrize("update", [3, 8])
def test_what_fails_after_a_wish_to_stop_is_a_stop(update: int, tmp_path: Path) -> None:
    """As if a signal for the whole group had ended a process that works for the trial."""
    config = small.config(tmp_path, "pipeline=pipedream_2bw", "correction=error_feedback")
    expected = run_trial({**config, "out": str(tmp_path / "whole")})
    killed = {**config, "out": str(tmp_path / "killed")}
    rows_so_far: list[Row] = []

    def report(row: Row) -> None:
        rows_so_far.append(row)
        if row["update"] == update:
            raise RuntimeError("g++ was terminated")

    saved = update // 5 * 5
    with pytest.raises(Stopped, match=f"after update {saved}:"):
        run_trial(killed, report, lambda: len(rows_so_far) > update)
    assert not (tmp_path / "killed" / "result.json").exists()
    attempt = json.loads(lease.attempts(tmp_path / "killed")[-1].read_text())
    assert attempt["ended"] == "Stopped"
    assert untimed(run_trial(killed)) == untimed(expected)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_stopped_after_every_update_it_ends_the_same(tmp_path: Path) -> None:
    config = small.config(tmp_path, *ARM)
    expected = run_trial({**config, "out": str(tmp_path / "whole")})
    again = {**config, "out": str(tmp_path / "again")}
    for num_done in range(1, 12):
        with pytest.raises(Stopped, match=f"after update {num_done}:"):
            run_trial(again, asked_to_stop=lambda: True)
    assert untimed(run_trial(again, asked_to_stop=lambda: True)) == untimed(expected)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")
