"""`pipegap COMMAND [key=value …]`, for the commands about results."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from textwrap import fill

from pipegap.analysis.commands import COMMANDS
from pipegap.trainer.base.cli import (
    DONE,
    Given,
    end_with,
    exit_code,
    parse,
    refuse_others,
    split_command,
)


def _values(words: Sequence[str], command: str, does: str, keys: Mapping[str, str]) -> Given:
    """Values by key. A key in capitals among `keys` allows any other key."""
    keys_text = "\n".join(
        fill(what, 100, initial_indent=f"{f'{key}=':<15}", subsequent_indent=" " * 15)
        for key, what in keys.items()
    )
    values = parse(words, command, does, keys_text)
    if not any(key.isupper() for key in keys):
        refuse_others({key: values[key] for key in values if key not in keys}, command)
    return values


def main(words: Sequence[str]) -> int:
    """Run the command that the first word names; without one, write a report.

    Exit code: 0 done (also for an empty store), 2 bad input, 1 anything else.
    """
    name, other_words = split_command(words, COMMANDS, "report")
    module, command = import_module(f"pipegap.analysis.commands.{name}"), f"pipegap {name}"

    def run() -> int:
        module.main(_values(other_words, command, module.__doc__ or "", module.KEYS))
        return DONE

    return exit_code(command, run)


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
