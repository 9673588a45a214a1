"""A server on loopback that speaks as much of S3 as a store needs, and fails when it is told to.

Independent of the code that it tests: a store's client is obstore, written for Amazon's servers.
`python -m tests.support.s3_server PORT` runs it for other processes and prints the variables that
lead to it; its bucket is s3://bucket.
"""

import hashlib
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape, unescape

BUCKET = "bucket"
PAGE = 1000
Fault = Callable[[str, str], str | None]
"""Method and key of a request → what goes wrong: an answer of ANSWERS; `cut`, the connection breaks
before the request has an effect; `lost`, after; None, nothing."""
ANSWERS = {
    "503": "SlowDown",
    "500": "InternalError",
    "403": "AccessDenied",
    "403 key": "InvalidAccessKeyId",
    "403 secret": "SignatureDoesNotMatch",
    "401": "Unauthorized",
    "400 token": "ExpiredToken",
}
"""What a server answers if it cannot or will not: status (and a word more) → code."""


class Stored(NamedTuple):
    """An object."""

    content: bytes
    e_tag: str
    modified: float


class ServedBucket:
    """What the server has. `conditional`: whether it looks at If-Match and If-None-Match."""

    def __init__(self) -> None:
        self.objects: dict[str, Stored] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.fault: Fault = lambda method, key: None
        self.conditional, self.latency = True, 0.0
        self.clock: Callable[[], float] = time.time

    def write(self, key: str, content: bytes) -> Stored:
        """Stores an object, with a new etag."""
        self.objects[key] = Stored(content, f'"{uuid4().hex}"', self.clock())
        return self.objects[key]


class S3Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bucket: ServedBucket

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def handle(self) -> None:
        """A client that goes is no news."""
        with suppress(ConnectionError):
            super().handle()

    def _do(self) -> None:
        parts = urlsplit(self.path)
        name, _, key = unquote(parts.path).lstrip("/").partition("/")
        asked = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self._body()
        bucket = self.bucket
        time.sleep(bucket.latency)
        with bucket.lock:
            bucket.requests[self.command] += 1
            fault = bucket.fault(self.command, key)
        if fault in ANSWERS:
            return self._answer(
                int(fault[:3]), f"<Error><Code>{ANSWERS[fault]}</Code></Error>".encode()
            )
        if fault == "cut":
            self.close_connection = True
            return self.connection.close()
        if name != BUCKET:
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        with bucket.lock:
            status, content, headers = self._method(key, asked, body)
        if fault == "lost":
            self.close_connection = True
            return self.connection.close()
        self._answer(status, content, headers)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _do

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _method(self, key: str, asked: dict[str, str], body: bytes) -> tuple[int, bytes, Any]:
        if "delete" in asked:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for gone in keys:
                self.bucket.objects.pop(unescape(gone), None)
            said = "".join(f"<Deleted><Key>{gone}</Key></Deleted>" for gone in keys)
            return 200, f"<DeleteResult>{said}</DeleteResult>".encode(), {}
        if self.command == "POST" or "uploadId" in asked:
            return self._multipart(key, asked, body)
        if not key:
            return 200, self._list(asked), {}
        if self.command == "PUT":
            return self._put(key, body)
        if self.command == "DELETE":
            self.bucket.objects.pop(key, None)
            return 204, b"", {}
        return self._get(key)

    def _put(self, key: str, body: bytes) -> tuple[int, bytes, Any]:
        there = self.bucket.objects.get(key)
        if self.bucket.conditional:
            if self.headers.get("If-None-Match") == "*" and there is not None:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
            if (wanted := self.headers.get("If-Match")) is not None:
                if there is None:
                    return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
                if there.e_tag != wanted:
                    return 412, b"<Error><Code>PreconditionFailed</Code></Error>", {}
        return 200, b"", {"ETag": self.bucket.write(key, body).e_tag}

    def _get(self, key: str) -> tuple[int, bytes, Any]:
        if (there := self.bucket.objects.get(key)) is None:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        about = {"ETag": there.e_tag, "Last-Modified": formatdate(there.modified, usegmt=True)}
        asked, size = self.headers.get("Range"), len(there.content)
        if asked is None:
            return 200, there.content, about
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or size - 1), size - 1)
        about["Content-Range"] = f"bytes {start}-{stop}/{size}"
        return 206, there.content[start : stop + 1], about

    def _list(self, asked: dict[str, str]) -> bytes:
        after = asked.get("continuation-token", asked.get("start-after", ""))
        prefix = asked.get("prefix", "")
        keys = sorted(k for k in self.bucket.objects if k.startswith(prefix) and k > after)
        page, rest = keys[:PAGE], keys[PAGE:]
        found = "".join(_contents(key, self.bucket.objects[key]) for key in page)
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if rest else ""
        return (
            f"<ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>{more}{found}</ListBucketResult>"
        ).encode()

    def _multipart(self, key: str, asked: dict[str, str], body: bytes) -> tuple[int, bytes, Any]:
        parts = self.bucket.parts
        if "uploads" in asked:
            parts[upload := uuid4().hex] = {}
            found = (
                f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            )
            head = "InitiateMultipartUploadResult"
            return 200, f"<{head}>{found}</{head}>".encode(), {}
        if self.command == "PUT":
            parts[asked["uploadId"]][int(asked["partNumber"])] = body
            return 200, b"", {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        whole = parts.pop(asked["uploadId"], {})
        if self.command == "DELETE":
            return 204, b"", {}
        made = self.bucket.write(key, b"".join(whole[number] for number in sorted(whole)))
        head = "CompleteMultipartUploadResult"
        return 200, f"<{head}><ETag>{escape(made.e_tag)}</ETag></{head}>".encode(), {}

    def _answer(self, status: int, content: bytes, headers: Any = ()) -> None:
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _contents(key: str, of: Stored) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(of.modified))
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(of.e_tag)}</ETag><Size>{len(of.content)}</Size></Contents>"
    )


class S3Server(ThreadingHTTPServer):
    """Many connections at a time."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A connection that broke is no news."""


def credentials(port: int) -> dict[str, str]:
    """The environment in which the usual clients find the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def serving(port: int = 0) -> Iterator[tuple[ServedBucket, int]]:
    """Yields what a new server has, and its port."""
    bucket = ServedBucket()
    server = S3Server(("127.0.0.1", port), type("Of", (S3Handler,), {"bucket": bucket}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield bucket, server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    with serving(int(sys.argv[1])) as (_, port), suppress(KeyboardInterrupt):
        for name, value in credentials(port).items():
            print(f"export {name}={value}", flush=True)
        threading.Event().wait()
