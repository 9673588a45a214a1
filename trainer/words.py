"""The words of a command: key=value each."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence

from trainer.errors import BadInput

Given = dict[str, str]


def split_command(
    words: Sequence[str], commands: Collection[str], default: str
) -> tuple[str, Sequence[str]]:
    """The command that the first word names, else the default; and the words that follow it.

    Raises BadInput for a first word that is neither a command, an option nor key=value.
    """
    first = words[0] if words else ""
    if first in commands:
        return first, words[1:]
    if first and "=" not in first and not first.startswith("-"):
        raise BadInput(first, "", f"must be key=value, or a command first: {', '.join(commands)}")
    return default, words


def parser(command: str, does: str, keys: str) -> argparse.ArgumentParser:
    """Of `command`, as in `python -m sweeps list`; `--help` prints what it does and its keys."""
    found = argparse.ArgumentParser(
        prog=command,
        description=does,
        epilog=keys,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("keys", nargs="*", metavar="key=value")
    return found


def parse(words: Sequence[str], command: str, does: str, keys: str) -> Given:
    """Values by key, the last of each; raises BadInput for a word without a value."""
    pairs = [word.partition("=") for word in parser(command, does, keys).parse_args(words).keys]
    for key, equals, value in pairs:
        if not equals or not key or not value:
            raise BadInput(key, value, f"must be key=value, see {command} --help")
    return {key: value for key, _, value in pairs}


def refuse_others(given: Given, command: str) -> None:
    """Raises BadInput for a key that the command did not take out."""
    for key, value in given.items():
        raise BadInput(key, value, f"is no key of it, see {command} --help")


def take_flag(given: Given, key: str) -> bool:
    """Takes out `key`: whether it is true; raises BadInput for another word than true or false."""
    return take_choice(given, key, ("false", "true")) == "true"


def take_choice(given: Given, key: str, allowed: Sequence[str]) -> str:
    """Takes out `key`, whose first allowed value is the default; raises BadInput for others."""
    value = given.pop(key, allowed[0])
    if value not in allowed:
        raise BadInput(key, value, f"must be {' or '.join(allowed)}")
    return value
