"""`pipegap COMMAND [key=value …]`: every command, under one name."""

import os
import sys
from difflib import get_close_matches
from importlib.metadata import version
from runpy import run_module
from typing import NoReturn

from pipegap.analysis.commands import COMMANDS as OF_ANALYSIS
from pipegap.sweeps.commands import COMMANDS as OF_SWEEPS
from pipegap.trainer.base.cli import BAD_INPUT, end_with
from pipegap.trainer.base.former import COMMANDS as FORMER

DOES = {
    "trial": "trains one trial, or resumes it",
    **OF_SWEEPS,
    **OF_ANALYSIS,
    "data": "prepares a corpus to train on",
}
"""Command → what it does."""

GROUPS = {
    "train": ("trial", "sweep", "data"),
    "look": ("status", "list", "report", "figures", "dashboard"),
    "decide": ("advise", "evaluate", "stability"),
    "on the delay track": ("enter", "verify"),
    "tidy up": ("rerun", "prune"),
    "on a Ray cluster": ("submit", "jobs", "stop"),
}
"""What people do → the commands for it."""

Program = tuple[str, ...]
"""A module for `python -m`, and the word with which its words begin, if any."""
PROGRAMS: dict[str, Program] = {
    "trial": ("pipegap.trainer",),
    **{name: ("pipegap.sweeps", name) for name in OF_SWEEPS},
    **{name: ("pipegap.analysis", name) for name in OF_ANALYSIS},
    "data": ("pipegap.trainer.data",),
}
"""Command → what runs it."""


def run() -> int:
    """Run the command that the first word names, as `python -m` does.

    Returns 0 after a list of all commands or the version, 2 if there is no such command; a command
    ends the process with its own exit code.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("pipegap COMMAND [key=value …], or pipegap COMMAND --help")
        for group, commands in GROUPS.items():
            lines = (f"  {command:<11}{DOES[command]}" for command in commands)
            print(f"\n{group}:", *lines, sep="\n")
        return 0
    if name == "--version":
        print(f"pipegap {version('pipegap')}")
        return 0
    if name not in PROGRAMS:
        print(f"pipegap: {name}: {_refusal(name)}, see pipegap --help", file=sys.stderr)
        return BAD_INPUT
    module, *begin = PROGRAMS[name]
    _import_own_modules_last()
    sys.argv[1:] = [*begin, *words]
    run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _import_own_modules_last() -> None:
    """Let a `torch.py` of the working folder hide nothing installed, here or in our processes:
    `python -m` and `python -c` would look there first."""
    if sys.path[0] in ("", os.getcwd()) and not sys.flags.safe_path:
        del sys.path[0]
    sys.path.append(os.getcwd())
    os.environ["PYTHONSAFEPATH"] = "1"


def _refusal(name: str) -> str:
    if name in FORMER:
        return "was dropped in 0.3.0; stay with 0.2 to run it"
    suggestions = get_close_matches(name, PROGRAMS, n=1)
    return f"must be a command{f', such as {suggestions[0]}' if suggestions else ''}"


def main() -> NoReturn:
    """Run a command and end this process with its exit code."""
    end_with(run)


if __name__ == "__main__":
    main()
