"""`pipegap COMMAND [key=value …]`, for the commands about sweeps."""

import sys
from collections.abc import Sequence
from importlib import import_module

from pipegap.sweeps.commands import COMMANDS
from pipegap.trainer.base.cli import end_with, exit_code, split_command


def main(words: Sequence[str]) -> int:
    """Run the command that the first word names; without one, the sweep that the words ask for.

    Exit code: 0 done, 2 bad input, 1 anything else.
    """
    name, other_words = split_command(words, COMMANDS, "sweep")
    command = import_module(f"pipegap.sweeps.commands.{'run' if name == 'sweep' else name}")
    return exit_code(f"pipegap {name}", lambda: command.main(other_words))


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
