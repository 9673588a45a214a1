"""`python -m analysis [COMMAND] [key=value …]`; without a command, it writes a report."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from analysis.commands import COMMANDS

try:
    from trainer.base.cli import (
        DONE,
        Given,
        end_with,
        exit_code,
        parse,
        refuse_others,
        split_command,
    )
except ModuleNotFoundError as error:  # PyPI has a package of that name too
    sys.exit(f"python -m analysis: another package is named trainer: uninstall it ({error})")


def _given(words: Sequence[str], name: str, does: str, keys: Mapping[str, str]) -> Given:
    """Values by key. A key in capitals among `keys` allows any other key."""
    command = f"python -m analysis {name}"
    shown = [*keys.items(), ("", ""), ("commands:", ""), *COMMANDS.items()]
    given = parse(words, command, does, "\n".join(f"{k:<15}{what}".rstrip() for k, what in shown))
    if not any(key.isupper() for key in keys):
        refuse_others({key: given[key] for key in given if key not in keys}, command)
    return given


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done (also for an empty store), 2 bad input, 1 anything else."""

    def command() -> int:
        name, rest = split_command(words, COMMANDS, "report")
        module = import_module(f"analysis.commands.{name}")
        module.main(_given(rest, name, module.__doc__ or "", module.KEYS))
        return DONE

    return exit_code("python -m analysis", command)


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
