"""A bucket for the stores of this room: ours, which fails when it is told to, and moto's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import moto, s3_server
from tests.support.bucket import found, served


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.ServedBucket]:
    with served(monkeypatch, tmp_path / "cache", num_tries=1) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    with moto.serving() as port:
        yield port


@pytest.fixture
def other_server(moto_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.empty(moto_port)
    found(monkeypatch, moto_port, tmp_path / "cache", num_tries=1)
