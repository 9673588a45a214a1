"""Writes every table and figure of a results folder and prints the gaps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DONE = 0
KEYS = {
    "results": "the store (default: results)",
    "out": "where to write (default: report)",
}


def main(given: Mapping[str, str]) -> int:
    """Exit code 0, also for an empty store; raises BadInput."""
    from analysis.report import report

    print(report(Path(given.get("results", "results")), Path(given.get("out", "report"))))
    return DONE
