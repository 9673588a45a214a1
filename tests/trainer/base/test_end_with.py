"""A command whose output nobody reads any more ends without a word."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.base.cli import FAILED, UNREAD

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


def test_another_broken_pipe_is_an_error() -> None:
    code = f"{LONG}raise BrokenPipeError('to a rank')\nend_with(main)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "to a rank" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_a_line(number: int) -> None:
    code = f"{LONG}raise OSError({number}, 'no room', 'a/file')\nend_with(main)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == FAILED
    expected = f"[Errno {number}] no room: 'a/file': make room, then the same command goes on\n"
    assert done.stderr == expected


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
