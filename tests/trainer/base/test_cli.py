"""A command names its commands, says durations as people do, and ends quietly if nobody listens."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from analysis import __main__ as analysis
from analysis.commands import COMMANDS as ANALYSES
from sweeps import __main__ as sweeps
from sweeps.commands import COMMANDS as SWEEPS
from trainer.base.cli import FAILED, UNREAD, duration, split_command

LONG = "from trainer.base.cli import end_with\ndef main():\n    "


def ended(code: str) -> tuple[int, str]:
    """Exit code and stderr of a program whose stdout has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("body", ["print('x')\n    return 0", "print('x' * 10**6)\n    return 0"])
def test_it_ends_quietly_when_it_prints_or_when_python_flushes(body: str) -> None:
    assert ended(f"{LONG}{body}\nend_with(main)") == (UNREAD, "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("BrokenPipeError('to a rank')", "BrokenPipeError: to a rank\n"),
        *(
            (
                f"OSError({number}, 'no room', 'a/file')",
                f"[Errno {number}] no room: 'a/file': make room, then the same command goes on\n",
            )
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        ),
    ],
)
def test_another_broken_pipe_is_an_error_and_a_full_disk_a_line(error: str, said: str) -> None:
    code = f"{LONG}raise {error}\nend_with(main)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == FAILED
    assert done.stderr.endswith(said)
    assert done.stderr == said or "Broken" in error


@pytest.mark.parametrize(
    "command",
    [
        ["trainer", "--help"],
        ["trainer", "--cfg"],
        ["trainer.data", "--help"],
        ["sweeps", "--help"],
        ["analysis", "--help"],
    ],
)
def test_every_command_line_does(command: list[str]) -> None:
    module, *words = command
    code = f"import runpy, sys; sys.argv[1:] = {words}; runpy.run_module({module!r}, alter_sys=True"
    exit_code, said = ended(f"{code}, run_name='__main__')")
    assert exit_code in (0, UNREAD)  # argparse itself is silent where the help is long
    assert said == ""


def test_a_drivers_console_falls_silent_and_a_command_that_shows_ends(tmp_path: Path) -> None:
    code = (
        "from sweeps.view.render import DriverConsole\n"
        f"{LONG}console = DriverConsole()\n    console.print('x')\n    console.print('x')\n"
        f"    open({str(tmp_path / 'goes on')!r}, 'w')\n    return 0\nend_with(main)"
    )
    assert ended(code) == (0, "")
    assert (tmp_path / "goes on").exists()
    shows = code.replace("DriverConsole", "ReadConsole").replace("goes on", "not reached")
    assert ended(shows) == (UNREAD, "")
    assert not (tmp_path / "not reached").exists()


def test_a_command_takes_the_words_after_it_and_the_default_takes_all() -> None:
    commands = ("run", "list")
    assert split_command(["list", "a=1"], commands, "run") == ("list", ["a=1"])
    for words in ([], ["a=1", "list"], ["--help"]):
        assert split_command(words, commands, "run") == ("run", words)


@pytest.mark.parametrize(
    ("main", "commands"),
    [(sweeps.main, SWEEPS), (analysis.main, ANALYSES)],
    ids=["sweeps", "analysis"],
)
def test_a_mistyped_command_is_one_line_that_names_them_all(
    main: Callable[[Sequence[str]], int],
    commands: Collection[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["advice"]) == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert f"advice=: must be key=value, or a command first: {', '.join(commands)}" in said.err


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
