"""A command says durations as people do, and ends quietly if nobody listens."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from getpass import getuser
from pathlib import Path

import pytest

from pipegap.trainer.__main__ import main
from pipegap.trainer.base.cli import FAILED, UNREAD, duration, end_with, split_word, stopping
from pipegap.trainer.base.errors import BadInput, Stopped
from pipegap.trainer.base.places import cache_folder, require_folder
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.wellformed import Row
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.processes import alive, children
from tests.support.trials import main_while, rows, untimed, wait_for

EACH = """
import json, os, runpy, sys, torch
from pipegap.sweeps.view.render import DriverConsole, ReadConsole
from pipegap.trainer.base.cli import end_with

def command(module, *words):
    sys.argv[1:] = words
    runpy.run_module(module, alter_sys=True, run_name="__main__")

def prints(text):
    print(text)
    return 0

def shows_twice(console, file):
    console.print("x")
    console.print("x")
    open(file, "w")
    return 0

codes = []
for program in sys.argv[1:]:
    if os.fork() == 0:
        exec(program)
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(json.dumps(codes), file=sys.stderr)
"""
"""Exit codes of programs, each a fork of one process: nothing else may be on stderr."""
PRINTS = ["end_with(lambda: prints('x'))", "end_with(lambda: prints('x' * 10**6))"]
COMMANDS = [
    *("command('pipegap.trainer', '--cfg')", "command('pipegap', '--help')"),
    *(f"command('pipegap', '{name}', '--help')" for name in ("trial", "data", "sweep", "report")),
]


def test_without_a_reader_programs_end_quietly(tmp_path: Path) -> None:
    """Those that print, or whose output Python flushes at the end, every command, and one that
    shows. The console of a driver falls silent, and the driver goes on."""
    consoles = [
        f"end_with(lambda: shows_twice({kind}(), {str(tmp_path / kind)!r}))"
        for kind in ("DriverConsole", "ReadConsole")
    ]
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", EACH, *PRINTS, *COMMANDS, *consoles]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    *of_commands, of_driver, of_reader = json.loads(done.stderr)
    assert of_commands[:2] == [UNREAD] * 2
    assert {*of_commands[2:]} <= {0, UNREAD}  # argparse itself is silent where the help is long
    assert len(of_commands) == 2 + len(COMMANDS)
    assert (of_driver, of_reader) == (0, UNREAD)
    assert [path.name for path in tmp_path.iterdir()] == ["DriverConsole"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        *((number, "make room") for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
        *((number, "its owner opens a folder") for number in (errno.EACCES, errno.EROFS)),
    ],
)
def test_a_full_disk_and_a_file_of_another_user_are_a_line(
    number: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> int:
        raise OSError(number, "why", "a/file")

    with pytest.raises(SystemExit) as done:
        end_with(main)
    assert done.value.code == FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"[Errno {number}] why: 'a/file': {remedy}")


@pytest.mark.parametrize(
    ("files", "code"), [("<&- >&- 2>&-", 0), (">&-", 0), ("2>/dev/full", 0), (">/dev/full", FAILED)]
)
def test_standard_files_that_nobody_can_use(tmp_path: Path, files: str, code: int) -> None:
    """Closed ones get no number that a file of ours has; what is said in vain changes no code."""
    program = (
        "from pipegap.trainer.base.cli import *\n"
        "def main():\n"
        "    with open('file', 'w') as file:\n"
        "        file.write('of the program')\n"
        "    print('out'), say('err'), sys.stdin.close()\n"
        "    return 0\n"
        "end_with(main)"
    )
    words = ["sh", "-c", f'"$0" -c "$1" {files}', sys.executable, program]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "file").read_text()) == (code, "of the program")
    assert "Traceback" not in done.stderr


def test_a_user_who_is_a_number_alone_has_a_name_and_a_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in `docker run --user 1234`: torch's compiler asks for one, our caches for the other."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "getuid", lambda: 2**30 + 7)
    with pytest.raises(KeyError):
        getuser()
    with pytest.raises(SystemExit, match=r"^0$"):
        end_with(lambda: int(not (getuser() and cache_folder().is_absolute())))


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("~/x", "~/x"),
        ("/c", "/c"),
        ("", "~/.cache"),
        ("x", "~/.cache"),
        ("~nobody-here", "~/.cache"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    variable: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert cache_folder() == Path(folder).expanduser() / "pipegap"


def test_another_broken_pipe_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise BrokenPipeError("to a rank")

    with pytest.raises(BrokenPipeError, match="to a rank"):
        end_with(main)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *((0.4, "0 s"), (99.4, "99 s"), (99.6, "2 min"), (40 * 60, "40 min"), (99 * 60, "99 min")),
        *((100 * 60, "1.7 h"), (12 * 3600, "12 h"), (71 * 3600, "71 h"), (75 * 3600, "3 days")),
        (3e8, "3,472 days"),
    ],
)
def test_durations_are_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_gets_what_it_can_show(encoding: str) -> None:
    text = "gap −0.01 ± 0.02, λ=½ Ω\udcff"
    program = f"from {end_with.__module__} import *\nend_with(lambda: print({text!r}) or 0)"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=False
    )
    shown = {
        "ascii": r"gap -0.01 +- 0.02, lambda=\xbd \u03a9\udcff",
        "latin-1": r"gap -0.01 ± 0.02, lambda=½ \u03a9\udcff",
        "utf-8": r"gap −0.01 ± 0.02, λ=½ Ω\udcff",
    }
    assert (done.stderr, done.stdout.decode(encoding)) == (b"", f"{shown[encoding]}\n")


def test_a_home_is_the_same_however_a_shell_passes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for word, value in {
        "results=~/my runs": "/home/me/my runs",
        "data.path=a/~/b": "a/~/b",
        "sweep.note=~5 %": "~5 %",
    }.items():
        assert split_word(word)[1] == value
    written_out = "must be written out, as nothing expands ~ here"
    for place in ("~/runs", "~nobody-has-this-name/runs"):
        with pytest.raises(BadInput, match=written_out):
            require_folder("results", split_word(f"x={place}")[1] if "nobody" in place else place)


# SIGTERM, Ctrl-C and a closed terminal save a checkpoint; the same command goes on, and nothing
# is lost.

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
    trial = ["-m", "pipegap", "trial", *small_sweep.overrides(tmp_path, *words), f"out={out}"]
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
    words = small_sweep.overrides(
        tmp_path, *ARM, "num_updates=4000", "eval_every=100", f"out={out}"
    )

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
    trainer = ["-m", "pipegap", "trial", *small_sweep.overrides(tmp_path, *words), f"out={out}"]
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
    words = small_sweep.overrides(
        tmp_path, *ARM, *GANG, "num_updates=4000", f"out={tmp_path / 'out'}"
    )
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
    config = small_sweep.config(tmp_path, "pipeline=pipedream_2bw", "correction=error_feedback")
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
    config = small_sweep.config(tmp_path, *ARM)
    expected = run_trial({**config, "out": str(tmp_path / "whole")})
    again = {**config, "out": str(tmp_path / "again")}
    for num_done in range(1, 12):
        with pytest.raises(Stopped, match=f"after update {num_done}:"):
            run_trial(again, asked_to_stop=lambda: True)
    assert untimed(run_trial(again, asked_to_stop=lambda: True)) == untimed(expected)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")
