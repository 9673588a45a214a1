"""The report of a store: `python -m analysis [results=DIR] [out=DIR] [watch=true]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import BadInput

DEFAULTS = {"results": "results", "out": "report", "watch": "false"}
DONE, BAD_INPUT = 0, 2


def _given(arguments: Sequence[str]) -> tuple[Path, Path, bool]:
    """results, out and watch."""
    given = dict(DEFAULTS)
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in DEFAULTS or not value:
            raise BadInput(key, value, "must be results=DIR, out=DIR or watch=true")
        given[key] = value
    if given["watch"] not in ("true", "false"):
        raise BadInput("watch", given["watch"], "must be true or false")
    return Path(given["results"]), Path(given["out"]), given["watch"] == "true"


def main() -> int:
    """Exit code: 0 done (also for an empty store), 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Writes a page, every table and figure of a results folder; prints the gaps.",
    )
    parser.add_argument("keys", nargs="*", metavar="key=value", help=f"defaults: {DEFAULTS}")
    arguments = parser.parse_args()
    try:
        results, out, watched = _given(arguments.keys)
        if watched:
            from analysis.watch import watch

            watch(results, out)
        else:
            from analysis.report import report

            print(report(results, out))
    except BadInput as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


if __name__ == "__main__":
    sys.exit(main())
