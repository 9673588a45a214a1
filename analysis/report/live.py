"""A report that follows its store: made again, in a folder of its own, whenever the store changes.

What is served is always a whole report: a new one takes the place of the old one at once.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from analysis.report.details import FOLDER, details, file_of
from analysis.report.page.page import running_html
from analysis.report.report import write_page, write_report
from analysis.report.running import running
from trainer.base.errors import BadInput

LOOK_EVERY = 2.0
"""Seconds between looks at the store."""
SHARE = 0.2
"""The largest share of a core that making reports may take from the trials that run."""
FILES = ("config.json", "result.json")
"""Files of a trial whose change makes a new report; its metrics change all the time."""

State = dict[str, tuple[int, int]]
Event = tuple[str, str]
"""Name and data of a server-sent event."""


class Turn:
    """When some work may be done again, so that it takes at most SHARE of the time."""

    def __init__(self) -> None:
        self._next = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._next

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The work is done in this context."""
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self._next = ended + (ended - started) * (1 / SHARE - 1)


class LiveReport:
    """The report of the store `results`, in folders below `place`; `store` is its name in commands.
    One thread makes the report with `look`; any thread may read it."""

    def __init__(self, results: Path, place: Path, store: str = "") -> None:
        self._results, self._place, self._store = results, place, store
        self._seen: State | None = None
        self._version = 0
        self._to_make, self._to_tell = Turn(), Turn()
        self._trials = pd.DataFrame({"trial_id": [], "status": [], "folder": []})
        self._events: dict[str, str] = {}
        self._changed = threading.Condition()
        self._closed = False

    @property
    def folder(self) -> Path:
        """The newest whole report."""
        return self._place / str(self._version)

    def look(self) -> str:
        """Makes the report again if its files changed, and tells what runs now.

        Returns what to print: empty if nothing was made. Raises as `report` does the first time;
        afterwards such an error is an event.
        """
        said = ""
        if self._to_make.is_due:
            with self._to_make.measured():
                said = self._make_if_changed()
        if self._to_tell.is_due:
            with self._to_tell.measured():
                self._tell("running", running_html(running(self._trials)))
        return said

    def _make_if_changed(self) -> str:
        if (now := state(self._results)) == self._seen:
            return ""
        try:
            said = self._make()
        except BadInput as error:
            if self._seen is None:
                raise
            self._tell("problem", f"The store cannot be read: {error}")
            said = ""
        self._seen = now
        return said

    def _make(self) -> str:
        version = self._version + 1
        out = self._place / str(version)
        try:
            made = write_report(self._results, out, store=self._store)
            write_page(made.page, out, live=str(version))
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        before, self._version, self._trials = self.folder, version, made.trials
        shutil.rmtree(before, ignore_errors=True)
        with self._changed:
            self._events.pop("problem", None)
            self._events["report"] = str(version)
            self._changed.notify_all()
        return f"{made.page.made}: {made.page.summary}"

    def _tell(self, name: str, what: str) -> None:
        with self._changed:
            if self._events.get(name) != (data := json.dumps(what)):
                self._events[name] = data
                self._changed.notify_all()

    def events(self, wait: float) -> Iterator[Event | None]:
        """Every event that is not out of date, and then each as it comes, until `close`; None after
        `wait` seconds without one."""
        told: dict[str, str] = {}

        def is_news() -> bool:
            return self._closed or self._events != told

        while True:
            with self._changed:
                self._changed.wait_for(is_news, wait)
                if self._closed:
                    return
                new = {name: of for name, of in self._events.items() if told.get(name) != of}
                told = dict(self._events)
            yield from new.items() if new else [None]

    def close(self) -> None:
        """Ends `events`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def details(self, name: str) -> str | None:
        """What `trials/NAME.js` says now, also of trials that run; None if no trial is in it."""
        names = self._trials["trial_id"].map(file_of)
        rows = self._trials[names == f"{FOLDER}/{name}"].to_dict("records")
        return details(rows, str(self._results)) if rows else None


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
    yield from [str(results)] if results.is_file() else []
    for folder in (results, results / "trials"):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            yield from (f"{entry.path}/{name}" for name in FILES)
    yield from map(str, (results / "sweeps").glob("*.json"))
