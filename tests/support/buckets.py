"""Buckets in the memory of this process, of obstore's own, in which a test looks and breaks
things.  Their writes are conditional as those of S3 are. What only a server can do wrong,
moto's shows.
"""

import os
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from pipegap.trainer.store import bucket as requests

URL = "s3://bucket/a/store"
Fault = Callable[[str, str], Literal["away", "lost"] | None]
"""Method and key of a request → what goes wrong: `away`, it has no effect; `lost`, its answer gets
lost; None, nothing."""


class Bucket:
    """What lies at URL; it stands in place of the library that asks for it."""

    exceptions = obstore.exceptions

    def __init__(self) -> None:
        self._stores: dict[str, MemoryStore] = {}
        self.requests = Counter[str]()
        self.fault: Fault = lambda method, key: None

    def store(self, url: str, *_: object) -> MemoryStore:
        """The library's store of a URL."""
        return self._stores.setdefault(url, MemoryStore())

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._request, method)

    def _request(self, method: str, store: MemoryStore, key: Any, *args: Any, **more: Any) -> Any:
        self.requests[method] += 1
        fault = self.fault(method, str(key))
        if fault == "away":
            raise GenericError("away")
        answer = getattr(obstore, method)(store, key, *args, **more)
        if fault == "lost":
            raise GenericError("lost")
        return answer

    @property
    def objects(self) -> dict[str, bytes]:
        """Every object by its key."""
        pages = obstore.list(self.store(URL))
        keys = [meta["path"] for page in pages for meta in page]
        return {key: bytes(obstore.get(self.store(URL), key).bytes()) for key in keys}

    def write(self, key: str, content: bytes) -> None:
        """Stores an object, with a new etag."""
        obstore.put(self.store(URL), key, content)

    def remove(self, key: str) -> None:
        """Deletes an object."""
        obstore.delete(self.store(URL), key)

    def restore(self, objects: Mapping[str, bytes]) -> None:
        """Makes the bucket have these objects alone."""
        for key in self.objects:
            self.remove(key)
        for key, content in objects.items():
            self.write(key, content)


@contextmanager
def served(patch: pytest.MonkeyPatch, cache: Path) -> Iterator[Bucket]:
    """Yields a bucket, empty, to which every URL of this process leads; copies lie in `cache`."""
    made = Bucket()
    patch.setattr(requests, "opened", made.store)
    patch.setattr(requests, "_library", lambda url: made)
    patch.setenv("XDG_CACHE_HOME", str(cache))
    yield made


# moto's server of buckets, which this project did not write. Its packages want other versions
# than ours, so that it lives in an environment of its own: `make moto`, or any `moto_server` on
# the PATH.

BUCKET = "bucket"
PAGE = 10
"""Objects that one answer to a listing has."""
START_WITHIN = 60.0
OURS = Path(__file__).parents[2] / ".venv/moto/bin/moto_server"


@contextmanager
def serving() -> Iterator[int]:
    """Yields the port of a new server on loopback; skips the test if there is no such program."""
    program = shutil.which("moto_server") or shutil.which(OURS)
    if program is None:
        pytest.skip("no moto_server on the PATH: make moto")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [program, "-H", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "MOTO_S3_DEFAULT_MAX_KEYS": str(PAGE)}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            deadline = time.monotonic() + START_WITHIN
            while not _answers(port):
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield port
        finally:
            server.kill()


def credentials(port: int) -> dict[str, str]:
    """The environment in which the usual clients find the server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def found(patch: pytest.MonkeyPatch, port: int) -> None:
    """The environment names the server at this port of loopback."""
    for name, value in credentials(port).items():
        patch.setenv(name, value)


def put(port: int, key: str, content: bytes = b"") -> None:
    """Stores an object by a plain request, whatever its key: nobody looks at signatures."""
    _ask(port, "PUT", f"{BUCKET}/{key}", content)


def empty(port: int) -> None:
    """Makes the server have nothing but the bucket of the tests, which is empty."""
    _ask(port, "POST", "moto-api/reset")
    _ask(port, "PUT", BUCKET)


def _answers(port: int) -> bool:
    try:
        empty(port)
    except URLError:
        return False
    return True


def _ask(port: int, method: str, path: str, content: bytes | None = None) -> None:
    url = f"http://127.0.0.1:{port}/{path}"
    headers = {"Content-Type": "application/octet-stream"}
    with urlopen(Request(url, method=method, data=content, headers=headers)):
        pass
