"""Writes a page, every table and figure of a results folder, and prints the gaps."""

from __future__ import annotations

from pathlib import Path

from trainer.base.cli import Given
from trainer.base.paths import require_folder

KEYS = {
    "results": "the store (default: results)",
    "out": "where to write (default: report)",
}


def main(given: Given) -> None:
    """Also of an empty store; raises BadInput."""
    places = {"results": "results", "out": "report", **given}
    for key in ("results", "out"):
        require_folder(key, places[key])
    results, out = Path(places["results"]), Path(places["out"])
    from analysis.report.report import report

    print(report(results, out))
