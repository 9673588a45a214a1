"""The page of a live report, for browsers on this machine: files, and server-sent events.

Read-only: there is no request that changes anything. It listens on the loopback address alone, and
refuses requests under another host's name, which a foreign web page could make a browser send.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import PurePosixPath
from typing import IO, Any, cast

from typing_extensions import override

from analysis.report.details import FOLDER
from analysis.report.live import LiveReport
from trainer.base.errors import BadInput

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
ALIVE_EVERY = 10.0
"""Seconds without an event after which an empty line is sent: it shows that the browser is gone."""
EVENTS = "/events"


class Server(ThreadingHTTPServer):
    """Serves `report` at HOST and `port` (0: any that is free). Raises BadInput if it is taken."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        try:
            super().__init__((HOST, port), Handler)
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
        """Answers from threads while the context lasts; afterwards the port is free."""
        thread = threading.Thread(target=self.serve_forever, name="server", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.report.close()
            self.shutdown()
            self.server_close()
            thread.join()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""


class Handler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.0"

    def __init__(self, request: Any, client_address: Any, server: Server) -> None:
        self._report = server.report
        super().__init__(request, client_address, server, directory=str(server.report.folder))

    @override
    def do_GET(self) -> None:
        if self._is_foreign():
            self.send_error(HTTPStatus.FORBIDDEN, "not the name of this machine's loopback address")
        elif self.path == EVENTS:
            with suppress(ConnectionError, TimeoutError):
                self._send_events()
        else:
            super().do_GET()

    @override
    def do_HEAD(self) -> None:
        if self._is_foreign():
            self.send_error(HTTPStatus.FORBIDDEN)
        else:
            super().do_HEAD()

    @override
    def send_head(self) -> IO[bytes] | None:  # type: ignore[override]
        """The details of trials are made for each request: those that run change all the time."""
        place = PurePosixPath(self.path.partition("?")[0])
        if str(place.parent) != f"/{FOLDER}":
            return cast("IO[bytes] | None", super().send_head())
        content = self._report.details(place.name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.end_headers()
        return BytesIO(content.encode())

    def _is_foreign(self) -> bool:
        return self.headers.get("Host", "").rpartition(":")[0] not in NAMES

    def _send_events(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in self._report.events(ALIVE_EVERY):
            said = ":\n\n" if event is None else f"event: {event[0]}\ndata: {event[1]}\n\n"
            self.wfile.write(said.encode())
            self.wfile.flush()

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
