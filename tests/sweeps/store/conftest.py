"""Buckets for the stores of this room, ours, which fails when it is told to, and moto's; stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.request.expand import Trial
from sweeps.store.objects import ObjectStore
from sweeps.store.opened import open_store
from sweeps.store.store import SweepStore
from tests.support import moto, s3_server
from tests.support.bucket import found, served
from tests.support.place import Place, made
from tests.support.reports import with_figures
from tests.support.stored import URL, trial_of


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


@pytest.fixture
def objects(server: s3_server.ServedBucket) -> SweepStore:
    """An empty store in the bucket."""
    return ObjectStore(URL)


@pytest.fixture
def trial(objects: SweepStore, tmp_path: Path) -> Trial:
    """A trial of that store, which has not begun."""
    return trial_of(objects, tmp_path)


@pytest.fixture(scope="module")
def one_figure() -> Iterator[None]:
    """What a report of the damage shows is in its words."""
    with with_figures(("final_losses",)):
        yield


@pytest.fixture
def folder(one_figure: None, server: s3_server.ServedBucket, tmp_path: Path) -> Place:
    """A store with trials in a folder."""
    return made(open_store(str(tmp_path / "results")), server, tmp_path)


@pytest.fixture
def bucket(one_figure: None, server: s3_server.ServedBucket, tmp_path: Path) -> Place:
    """A store with trials in the bucket."""
    return made(open_store(URL), server, tmp_path)
