"""Tables and figures of a results folder: `python -m analysis [results=DIR] [out=DIR]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.report import report

DONE, BAD_INPUT = 0, 2
DEFAULTS = {"results": "results", "out": "report"}


def main() -> int:
    """Exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Writes the gap table and the figures of a results folder.",
        epilog="results=DIR (default: results), out=DIR (default: report)",
    )
    parser.add_argument("options", nargs="*", metavar="key=value")
    given = dict(option.partition("=")[::2] for option in parser.parse_args().options)
    if unknown := sorted(set(given) - set(DEFAULTS)):
        return _refuse(f"{unknown[0]}={given[unknown[0]]}: must be results=DIR or out=DIR")
    options = {**DEFAULTS, **given}
    try:
        print(report(Path(options["results"]), Path(options["out"])))
    except FileNotFoundError as error:
        return _refuse(f"results={options['results']}: {error}")
    except ValueError as error:
        return _refuse(str(error))
    return DONE


def _refuse(problem: str) -> int:
    print(f"python -m analysis: {problem}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
