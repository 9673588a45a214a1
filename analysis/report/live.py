"""A report that is made again whenever its store changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from analysis.report.report import write_page, write_report

LOOK_EVERY = 3.0
"""Seconds between looks at the store."""
FILES = ("config.json", "result.json")
"""Files of a trial whose change makes a new report; its metrics change all the time."""

State = dict[str, tuple[int, int]]


def live_report(results: Path, out: Path) -> None:
    """Makes the report, and makes it again whenever a trial or a record changes, until Ctrl-C.

    Until then the page reloads itself. Raises as `report` does.
    """
    page, seen = None, None
    try:
        while True:
            if (now := state(results)) != seen:
                _, page = write_report(results, out)
                write_page(page, out, watched=True)
                print(f"{page.made}: {page.summary} {out}/index.html; Ctrl-C ends", flush=True)
                seen = now
            time.sleep(LOOK_EVERY)
    except KeyboardInterrupt:
        if page is not None:
            write_page(page, out, watched=False)


def state(results: Path) -> State:
    """Modification time and size of each file that a report is made of; empty without a store."""
    found: State = {}
    for path in _files(results):
        try:
            at = os.stat(path)
        except OSError:
            continue
        found[path] = at.st_mtime_ns, at.st_size
    return found


def _files(results: Path) -> Iterator[str]:
    for folder in (results, results / "trials"):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            yield from (f"{entry.path}/{name}" for name in FILES)
    yield from map(str, (results / "sweeps").glob("*.json"))
