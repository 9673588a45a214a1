"""A bucket for the stores of this room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import s3_server
from tests.support.bucket import served


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.ServedBucket]:
    with served(monkeypatch, tmp_path / "cache", num_tries=1) as bucket:
        yield bucket
