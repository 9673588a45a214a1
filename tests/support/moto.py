"""moto's server, which this project did not write. Its packages want other versions than ours, so
that it lives in an environment of its own: `make moto`, or any `moto_server` on the PATH."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from tests.support.s3_server import BUCKET

PAGE = 10
"""Objects that one answer to a listing has."""
START_WITHIN = 60.0


@contextmanager
def serving() -> Iterator[int]:
    """Yields the port of a new server on loopback; skips the test if there is no such program."""
    program = shutil.which("moto_server")
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


def _answers(port: int) -> bool:
    try:
        empty(port)
    except URLError:
        return False
    return True


def empty(port: int) -> None:
    """Makes the server have nothing but the bucket of the tests, which is empty."""
    for method, path in (("POST", "moto-api/reset"), ("PUT", BUCKET)):
        with urlopen(Request(f"http://127.0.0.1:{port}/{path}", method=method)):
            pass
