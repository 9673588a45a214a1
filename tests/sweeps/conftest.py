"""Buckets, and stores with trials in a bucket or a folder."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.store.opened import BucketStore, open_store
from pipegap.trainer.store.store import SweepStore
from tests.support import buckets
from tests.support.buckets import URL, Bucket, served
from tests.support.pages import with_figures
from tests.support.trials import Place, made, trial_of


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


@pytest.fixture
def objects(server: Bucket) -> SweepStore:
    """An empty store in the bucket."""
    return BucketStore(URL)


@pytest.fixture
def trial(objects: SweepStore, tmp_path: Path) -> Trial:
    """A trial of that store, which has not begun."""
    return trial_of(objects, tmp_path)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """The store of each kind as it was made, whatever a test has done to it since."""
    here, kept = tmp_path_factory.mktemp("places"), tmp_path_factory.mktemp("kept") / "places"
    with (
        pytest.MonkeyPatch.context() as patch,
        served(patch, here / "cache") as server,
        with_figures(("final_losses",)),
    ):
        urls = {"folder": str(here / "folder" / "results"), "bucket": URL}
        each = {kind: made(open_store(url), server, here / kind) for kind, url in urls.items()}
        shutil.copytree(here, kept)
        objects = server.objects

        def again(kind: str) -> Place:
            shutil.rmtree(here)
            shutil.copytree(kept, here)
            server.restore(objects)
            return each[kind]._replace(store=open_store(urls[kind]))

        yield again


@pytest.fixture
def folder(places: Callable[[str], Place]) -> Place:
    """A store with trials in a folder."""
    return places("folder")


@pytest.fixture
def bucket(places: Callable[[str], Place]) -> Place:
    """A store with trials in the bucket."""
    return places("bucket")
