"""What tests of whole sweeps share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import s3_server
from tests.support.bucket import served


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.ServedBucket]:
    """A server of buckets, to which the environment leads."""
    with served(monkeypatch, tmp_path / "cache", num_tries=1) as bucket:
        yield bucket


@pytest.fixture
def without_figures() -> Iterator[None]:
    """The reports that this process makes have no figures, which other tests look at."""
    from tests.support.reports import with_figures  # slow: only imported where a report is made

    with with_figures([]):
        yield
