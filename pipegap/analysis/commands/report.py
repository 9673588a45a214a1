"""Writes a page, every table and figure of a results folder, and prints the gaps.

e.g. pipegap report results=results out=report
"""

from pathlib import Path

from pipegap.trainer.base.cli import Given
from pipegap.trainer.base.places import require_folder
from pipegap.trainer.store.opened import pulled

KEYS = {
    "results": "the store (default: results); [A,B] compares the trials of several",
    "out": "where to write (default: report)",
}


def main(values: Given) -> None:
    """Write the report of a store, which may be empty, and print its text; raises BadInput."""
    from pipegap.analysis.report.report import report  # it is large
    from pipegap.analysis.table.selection import several

    places = {"results": "results", "out": "report", **values}
    require_folder("out", places["out"])
    stores = several(places["results"])
    print(report([*map(pulled, stores)], Path(places["out"]), store=stores[0]))
