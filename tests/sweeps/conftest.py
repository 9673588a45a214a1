"""What tests of whole sweeps share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import buckets
from tests.support.buckets import Bucket, served


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket in memory."""
    with served(monkeypatch, tmp_path / "cache") as bucket:
        yield bucket


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with buckets.serving() as port:
        yield port


@pytest.fixture
def moto_server(moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of moto's server, with an empty bucket, to which the environment leads."""
    buckets.empty(moto_port)
    buckets.found(monkeypatch, moto_port)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return moto_port
