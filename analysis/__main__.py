"""`python -m analysis [COMMAND] [key=value …]`; without a command, it writes a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from analysis.commands import COMMANDS
from trainer.errors import BadInput

BAD_INPUT = 2


def _given(words: Sequence[str], name: str, does: str, keys: Mapping[str, str]) -> dict[str, str]:
    """Values by key; a key in capitals among `keys` stands for any other."""
    shown = [*keys.items(), ("", ""), ("commands:", ""), *COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog=f"python -m analysis {name}",
        description=does,
        epilog="\n".join(f"{key:<15}{what}".rstrip() for key, what in shown),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("keys", nargs="*", metavar="key=value")
    others = any(key.isupper() for key in keys)
    given = {}
    for word in parser.parse_args(words).keys:
        key, equals, value = word.partition("=")
        if not equals:
            allowed = f"must be key=value, or a command first: {', '.join(COMMANDS)}"
            raise BadInput(key, "", allowed)
        if not key or not value or not (others or key in keys):
            known = ", ".join(f"{known}=…" for known in keys)
            raise BadInput(key, value, f"must be one of {known}")
        given[key] = value
    return given


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done (also for an empty store), 2 bad input."""
    name, *rest = words if words and words[0] in COMMANDS else ["report", *words]
    module = import_module(f"analysis.commands.{name}")
    try:
        exit_code: int = module.main(_given(rest, name, module.__doc__ or "", module.KEYS))
    except BadInput as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return BAD_INPUT
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
