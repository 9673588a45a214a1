"""A command says durations as people do, and ends quietly if nobody listens."""

import errno
import json
import os
import subprocess
import sys
from getpass import getuser
from pathlib import Path

import pytest

from pipegap.trainer.base.cli import FAILED, UNREAD, duration, end_with, split_word
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.places import cache_folder, require_folder

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
    ("files", "code"),
    [("<&- >&- 2>&-", 0), (">&-", 0), ("2>/dev/full", 0), (">/dev/full", FAILED)],
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
