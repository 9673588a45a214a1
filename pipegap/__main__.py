"""`pipegap COMMAND [key=value …]`: every command under one name, with the words of its package.

`pipegap sweep sweep=main` is `python -m sweeps sweep=main`, and `pipegap advise` is
`python -m analysis advise`.
"""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from runpy import run_module
from typing import NoReturn

from analysis.commands import COMMANDS as OF_ANALYSIS
from pipegap import IN_THE_WAY
from sweeps.commands import COMMANDS as OF_SWEEPS

try:
    from trainer.base.cli import BAD_INPUT, end_with
except ModuleNotFoundError as error:
    sys.exit(f"{IN_THE_WAY} ({error})")

Command = tuple[str, ...]
"""A module for `python -m`, and the word with which its words begin, if any."""


def _renamed(module: str, does: Mapping[str, str], default: str, name: str) -> dict[str, Command]:
    """Return the commands of a module; its `default` needs no word there and is `name` here."""
    return {name: (module,)} | {word: (module, word) for word in does if word != default}


PLACES: dict[str, Command] = {
    "trial": ("trainer",),
    **_renamed("sweeps", OF_SWEEPS, "run", "sweep"),
    **_renamed("analysis", OF_ANALYSIS, "report", "report"),
    "data": ("trainer.data",),
}
"""First word of the command line → where the command is."""
DOES = {
    **OF_SWEEPS,
    **OF_ANALYSIS,
    "trial": "trains one trial, or resumes it",
    "sweep": OF_SWEEPS["run"],
    "data": "prepares a corpus to train on",
}


def run() -> int:
    """Run the command that the first word names, as `python -m` does.

    Returns 0 after a list of all commands, 2 if there is no such command; a command ends the
    process with its own exit code.
    """
    name, *words = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        lines = (f"  {name:<11}{DOES[name].removesuffix(' (the default)')}" for name in PLACES)
        print("pipegap COMMAND [key=value …], or pipegap COMMAND --help", "", *lines, sep="\n")
        return 0
    if name not in PLACES:
        near = get_close_matches(name, PLACES, n=1)
        hint = f", such as {near[0]}" if near else ""
        print(f"pipegap: {name}: must be a command{hint}, see pipegap --help", file=sys.stderr)
        return BAD_INPUT
    module, *begin = PLACES[name]
    sys.argv[1:] = [*begin, *words]
    run_module(module, run_name="__main__", alter_sys=True)
    return 0


def main() -> NoReturn:
    """Run a command and end this process with its exit code."""
    end_with(run)


if __name__ == "__main__":
    main()
