"""A server of buckets in this process, which the environment of a test names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipegap.trainer.store import provider
from tests.support import s3_server


@contextmanager
def served(
    patch: pytest.MonkeyPatch, cache: Path, num_tries: int
) -> Iterator[s3_server.ServedBucket]:
    """Yields what it has; copies lie in `cache`, and a request is repeated so often."""
    with s3_server.serving() as (bucket, port):
        found(patch, port, cache, num_tries)
        yield bucket


def found(patch: pytest.MonkeyPatch, port: int, cache: Path, num_tries: int) -> None:
    """The environment names the server at this port of loopback."""
    for name, value in s3_server.credentials(port).items():
        patch.setenv(name, value)
    patch.setenv("XDG_CACHE_HOME", str(cache))
    patch.setattr(provider, "NUM_TRIES", num_tries)
