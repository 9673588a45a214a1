"""Tables and figures of a results folder: `python -m analysis [results=DIR] [out=DIR]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import BadInput

DEFAULTS = {"results": "results", "out": "report"}
DONE, BAD_INPUT = 0, 2


def _paths(arguments: Sequence[str]) -> dict[str, Path]:
    paths = dict(DEFAULTS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in DEFAULTS or not value:
            raise BadInput(key, value, "must be results=DIR or out=DIR")
        paths[key] = value
    return {key: Path(value) for key, value in paths.items()}


def main() -> int:
    """Exit code: 0 done (also for an empty store), 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Writes every table and figure of a results folder and prints the gaps.",
    )
    parser.add_argument("keys", nargs="*", metavar="key=value", help=f"defaults: {DEFAULTS}")
    arguments = parser.parse_args()
    try:
        paths = _paths(arguments.keys)
        from analysis.report import report

        print(report(paths["results"], paths["out"]))
    except BadInput as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
