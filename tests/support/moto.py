"""moto's server of buckets, which this project did not write. Its packages want other versions than
ours, so that it lives in an environment of its own: `make moto`, or any `moto_server` on the PATH.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

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
