"""The report of a store for browsers on this machine, made again whenever the store changes.

What is served is always a whole report: a new one takes the place of the old one at once. Every few
seconds the page asks for `/now`. It loads itself again when there is a newer report, and lists the
trials that run.

The server is read-only: no request changes anything. It listens on the loopback address alone, and
refuses requests under another host's name, which a foreign web page could make a browser send.
"""

import errno
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import pandas as pd
from typing_extensions import override

from analysis.report.details import FOLDER, details, file_of
from analysis.report.facts import running
from analysis.report.page.page import running_html
from analysis.report.report import write_report
from trainer.base.errors import BadInput

LOOK_EVERY = 2.0
"""Seconds between looks at the store."""
SHARE = 0.2
"""The largest share of a core that making reports may take from the trials that run."""
FILES = ("config.json", "result.json")
"""Files of a trial whose change makes a new report; its metrics change all the time."""
HOST = "127.0.0.1"
NAMES = re.compile(rf"({re.escape(HOST)}|localhost)(:\d+)?")
"""What a browser on this machine may call the server; it leaves out port 80."""

State = dict[str, tuple[int, int]]


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
        """Measure the work that is done in this context."""
        started = time.monotonic()
        yield
        ended = time.monotonic()
        self._next = ended + (ended - started) * (1 / SHARE - 1)


class LiveReport:
    """The report of the store `results`, in folders below `place`; `store` is its name in commands.

    One thread makes the report with `look`; any thread may read it.
    """

    def __init__(self, results: Path, place: Path, store: str = "") -> None:
        self._results, self._place, self._store = results, place, store or str(results)
        self._seen: State | None = None
        self._version = 0
        self._to_make, self._to_tell = Turn(), Turn()
        self._trials = pd.DataFrame({"trial_id": [], "status": [], "folder": []})
        self._running, self._problem = "", ""

    @property
    def folder(self) -> Path:
        """The newest whole report."""
        return self._place / str(self._version)

    def look(self) -> str:
        """Make the report again if its files changed, and note what runs now.

        Returns what to print, which is empty if nothing was made. Raises as `report` does the first
        time; afterwards such an error is the problem that `now` tells.
        """
        said = ""
        if self._to_make.is_due:
            with self._to_make.measured():
                said = self._make_if_changed()
        if self._to_tell.is_due:
            with self._to_tell.measured():
                self._running = running_html(running(self._trials))
        return said

    def now(self) -> str:
        """Return as JSON the version of the report, the running trials as HTML, and the problem."""
        version = str(self._version)
        return json.dumps({"version": version, "running": self._running, "problem": self._problem})

    def details(self, name: str) -> str | None:
        """Return what `trials/NAME.js` says now, also of running trials; None without a trial."""
        names = self._trials["trial_id"].map(file_of)
        rows = self._trials[names == f"{FOLDER}/{name}"].to_dict("records")
        return details(rows, f"results={self._store}") if rows else None

    def _make_if_changed(self) -> str:
        if (now := state(self._results)) == self._seen:
            return ""
        try:
            said = self._make()
            self._problem = ""
        except BadInput as error:
            if self._seen is None:
                raise
            said, self._problem = "", f"The store cannot be read: {error}"
        self._seen = now
        return said

    def _make(self) -> str:
        version = self._version + 1
        out = self._place / str(version)
        try:
            made = write_report(self._results, out, store=self._store, live=str(version))
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise
        # The version last: whoever reads the new one finds its folder and its trials whole.
        before, self._trials, self._version = self.folder, made.trials, version
        shutil.rmtree(before, ignore_errors=True)
        return f"{made.page.made}: {made.page.summary}"


def state(results: Path) -> State:
    """Return modification time and size of each file that a report is made of; none without a
    store."""
    stats: State = {}
    for path in _files(results):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        stats[path] = stat.st_mtime_ns, stat.st_size
    return stats


def _files(results: Path) -> Iterator[str]:
    yield from [str(results)] if results.is_file() else []
    for folder in (results, results / "trials"):
        for entry in os.scandir(folder) if folder.is_dir() else ():
            yield from (f"{entry.path}/{name}" for name in FILES)
    yield from map(str, (results / "sweeps").glob("*.json"))


class PageServer(ThreadingHTTPServer):
    """Serves `report` at HOST and `port` (0: any that is free). Raises BadInput if it is taken."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        try:
            super().__init__((HOST, port), PageHandler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            why = "is taken" if error.errno == errno.EADDRINUSE else "may not be used"
            raise BadInput("port", port, f"{why}: choose another, or 0 for any free one") from None

    @property
    def address(self) -> str:
        """What to open in a browser."""
        return f"http://{HOST}:{self.server_port}/"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer from threads while the context lasts; afterwards the port is free."""
        thread = threading.Thread(target=self.serve_forever, name="server", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            thread.join()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""


class PageHandler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.0"

    def __init__(self, request: Any, client_address: Any, server: PageServer) -> None:
        self._report = server.report
        super().__init__(request, client_address, server, directory=str(server.report.folder))

    @override
    def send_head(self) -> IO[bytes] | None:  # type: ignore[override]
        """Send the head and return the content, None after an error.

        The details of trials are made for each request: trials that run change all the time.
        """
        if not NAMES.fullmatch(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN, "not the name of this machine's loopback address")
            return None
        place = PurePosixPath(self.path.partition("?")[0])
        if str(place) == "/now":
            return self._send(self._report.now(), "application/json")
        if str(place.parent) != f"/{FOLDER}":
            return cast("IO[bytes] | None", super().send_head())
        content = self._report.details(place.name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return self._send(content, "text/javascript")

    def _send(self, content: str, kind: str) -> IO[bytes]:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        return BytesIO(content.encode())

    @override
    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    @override
    def list_directory(self, path: Any) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not worth a line."""
