"""`python -m sweeps [COMMAND] [key=value …]`; without a command, it runs a sweep."""

import sys
from collections.abc import Sequence
from importlib import import_module

from sweeps.commands import COMMANDS

try:
    from trainer.base.cli import end_with, exit_code, split_command
except ModuleNotFoundError as error:  # PyPI has a package of that name too
    sys.exit(f"python -m sweeps: another package is named trainer: uninstall it ({error})")


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 bad input, 1 anything else."""

    def command() -> int:
        name, rest = split_command(words, COMMANDS, "run")
        return import_module(f"sweeps.commands.{name}").main(rest)

    return exit_code("python -m sweeps", command)


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
