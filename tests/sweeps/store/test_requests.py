"""What a store asks of a bucket, on two servers: ours, and one that this project did not write."""

import pickle
import time
from io import BytesIO
from pathlib import Path

import pytest

from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store.bucket import BucketClient, Changed, StoreRefuses, Torn
from tests.support import moto, s3_server
from tests.support.stored import URL

SERVERS = ("server", "other_server")


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> BucketClient:
    request.getfixturevalue(request.param)
    return BucketClient(URL)


def test_an_object_is_created_once(bucket: BucketClient) -> None:
    version = bucket.create("a/b.json", b"first")
    with pytest.raises(Changed):
        bucket.create("a/b.json", b"second")
    assert bucket.read("a/b.json")[:2] == (b"first", version)


def test_a_version_is_replaced_once(bucket: BucketClient) -> None:
    first = bucket.create("a", b"first")
    second = bucket.replace("a", b"second", first)
    assert second != first
    with pytest.raises(Changed):
        bucket.replace("a", b"third", first)
    assert bucket.read("a")[:2] == (b"second", second)
    bucket.delete(["a"])
    with pytest.raises(Changed):
        bucket.replace("a", b"third", second)
    with pytest.raises(FileNotFoundError):
        bucket.read("a")


@pytest.mark.parametrize("size", [0, 1, 1000, 1001])
def test_a_large_object_comes_back_in_parts(
    size: int, bucket: BucketClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(i % 251 for i in range(size))
    bucket.upload("large", content)
    monkeypatch.setattr(requests, "CHUNK", 500)
    bucket.download("large", tmp_path / "large", size)
    assert (tmp_path / "large").read_bytes() == content


@pytest.mark.parametrize("size", [0, 3])
def test_an_object_that_is_too_short_is_told_from_a_store_that_is_away(
    size: int, bucket: BucketClient, tmp_path: Path
) -> None:
    bucket.upload("torn", bytes(size))
    with pytest.raises(Torn):
        bucket.download("torn", tmp_path / "torn", 5)
    with pytest.raises(FileNotFoundError):
        bucket.download("gone", tmp_path / "gone", 5)


def test_a_large_object_goes_in_parts(bucket: BucketClient, tmp_path: Path) -> None:
    content = b"0123456789abcdef" * (1 << 16) * 17  # two requests and a part
    bucket.upload("large", BytesIO(content))
    bucket.download("large", tmp_path / "large", len(content))
    assert (tmp_path / "large").read_bytes() == content
    bucket.upload("large", b"small")
    assert bucket.read("large").content == b"small"


def test_a_listing_is_of_a_folder_and_has_every_page(
    bucket: BucketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_server, "PAGE", moto.PAGE)
    names = ["Ünï cödé", "a b+c&d=e", "%41", "x.json", *map(str, range(2 * moto.PAGE))]
    for name in names:
        bucket.upload(f"many/{name}", name.encode())
    bucket.upload("manyother", b"not below")
    listed = {meta.key: meta for meta in bucket.list("many")}
    assert listed.keys() == {f"many/{name}" for name in names}
    assert {meta.size for meta in listed.values() if "cöd" in meta.key} == {len(names[0].encode())}
    before = listed["many/x.json"].e_tag
    bucket.upload("many/x.json", b"another")
    assert {meta.key: meta.e_tag for meta in bucket.list("many")}["many/x.json"] != before
    bucket.delete([*listed, "many/gone"])
    assert [*bucket.list("many")] == []
    assert len(bucket.list("")) == 1
    bucket.delete([])


def test_the_servers_clock_is_asked_once_and_leaves_nothing(bucket: BucketClient) -> None:
    now = bucket.now()
    assert abs(now - time.time()) < 60, "both servers are on this machine"
    again = bucket.now()
    assert now <= again < now + 60
    assert [*bucket.list("")] == []


def test_another_process_gets_the_same_bucket(bucket: BucketClient) -> None:
    bucket.create("a", b"here")
    bucket.now()
    assert pickle.loads(pickle.dumps(bucket)).read("a").content == b"here"


def test_no_bucket_is_no_empty_one(bucket: BucketClient) -> None:
    nowhere = BucketClient("s3://nowhere/store")
    for ask in (lambda: nowhere.list("registers"), lambda: nowhere.create("a", b"")):
        with pytest.raises(StoreRefuses, match="there is no such bucket"):
            ask()
