"""A webhook of a chat, on this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T0ken-of-a-webhook"


@dataclass
class Webhook:
    """What was posted to its `url`. It answers with `status`, and takes nothing but with 200."""

    url: str = ""
    status: int = 200
    posts: list[dict[str, Any]] = field(default_factory=list)
    logins: set[str | None] = field(default_factory=set)

    def kinds(self) -> list[str]:
        return [post["kind"] for post in self.posts]


@contextmanager
def served() -> Iterator[Webhook]:
    made = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if made.status == 200:
                made.posts.append(body)
            made.logins.add(self.headers["Authorization"])
            self.send_response(made.status)
            self.send_header("Location", "/")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        made.url = f"http://127.0.0.1:{http.server_port}/services/{SECRET}"
        yield made
        http.shutdown()
