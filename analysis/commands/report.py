"""Writes a page, every table and figure of a results folder, and prints the gaps."""

from __future__ import annotations

from pathlib import Path

from trainer.words import Given, take_flag

DONE = 0
KEYS = {
    "results": "the store (default: results)",
    "out": "where to write (default: report)",
    "watch": "true: again whenever the store changes, until Ctrl-C (default: false)",
}


def main(given: Given) -> int:
    """Exit code 0, also for an empty store; raises BadInput."""
    results, out = Path(given.get("results", "results")), Path(given.get("out", "report"))
    if take_flag(given, "watch"):
        from analysis.watch import watch

        watch(results, out)
    else:
        from analysis.report import report

        print(report(results, out))
    return DONE
