"""What a store asks of a bucket: of one in memory, and of a server that is not ours."""

import pickle
import time
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest

from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store.bucket import BucketClient, Changed, StoreRefuses
from pipegap.trainer.store.opened import open_store
from tests.support import moto
from tests.support.bucket import URL

SERVERS = ("server", "moto_server")


@pytest.fixture(params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> BucketClient:
    request.getfixturevalue(request.param)
    return BucketClient(URL)


def test_an_object_is_created_once(bucket: BucketClient) -> None:
    version = bucket.write("a/b.json", b"first", None)
    with pytest.raises(Changed):
        bucket.write("a/b.json", b"second", None)
    assert bucket.read("a/b.json")[:2] == (b"first", version)


def test_a_version_is_replaced_once(bucket: BucketClient) -> None:
    first = bucket.write("a", b"first", None)
    second = bucket.write("a", b"second", first)
    assert second != first
    with pytest.raises(Changed):
        bucket.write("a", b"third", first)
    assert bucket.read("a")[:2] == (b"second", second)
    bucket.delete(["a"])
    with pytest.raises(Changed):
        bucket.write("a", b"third", second)
    with pytest.raises(FileNotFoundError):
        bucket.read("a")


@pytest.mark.parametrize("size", [0, 1, 1000, 1001])
def test_a_large_object_comes_back_in_parts(
    size: int, bucket: BucketClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(i % 251 for i in range(size))
    bucket.upload("a/large", content)
    [meta] = bucket.list("a")
    assert meta.size == size
    monkeypatch.setattr(requests, "CHUNK", 500)
    bucket.download(meta, tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content


@pytest.mark.parametrize("size", [1, 1001])
def test_no_download_is_of_two_contents(
    size: int, bucket: BucketClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload("a/large", bytes(size))
    [meta] = bucket.list("a")
    bucket.upload("a/large", b"1" * size)
    monkeypatch.setattr(requests, "CHUNK", 500)
    with pytest.raises(Changed):
        bucket.download(meta, tmp_path / "changed")
    bucket.delete(["a/large"])
    with pytest.raises(FileNotFoundError):
        bucket.download(meta, tmp_path / "gone")


def test_etags_are_those_of_a_listing(bucket: BucketClient) -> None:
    etags = {"a/b": bucket.write("a/b", b"1", None), "a/c": bucket.upload("a/c", b"2")}
    etags["a/large"] = bucket.upload("a/large", BytesIO(bytes(requests.CHUNK + 1)))
    assert {meta.key: {"e_tag": meta.e_tag} for meta in bucket.list("a")} == {
        key: {"e_tag": version["e_tag"]} for key, version in etags.items()
    }


def test_a_copy_has_the_same_bytes(bucket: BucketClient) -> None:
    bucket.upload("a/b", b"content")
    bucket.copy("a/b", "c/d/e")
    assert bucket.read("c/d/e").content == bucket.read("a/b").content == b"content"


def test_a_large_object_goes_in_parts(bucket: BucketClient, tmp_path: Path) -> None:
    content = b"0123456789abcdef" * (1 << 16) * 17  # two requests and a part
    bucket.upload("a/large", BytesIO(content))
    bucket.download(bucket.list("a")[0], tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content
    bucket.upload("a/large", b"small")
    assert bucket.read("a/large").content == b"small"


def test_a_listing_is_of_a_folder_and_has_every_page(bucket: BucketClient) -> None:
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


def test_the_servers_clock_tells_the_time_and_leaves_nothing(
    bucket: BucketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.write("a", b"", None)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    [meta] = bucket.list("")
    assert 0 <= bucket.now() - bucket.read("a").modified < 60
    assert 0 <= bucket.now() - meta.modified < 60
    assert [meta.key for meta in bucket.list("")] == ["a"]


def test_another_process_gets_the_same_bucket(bucket: BucketClient) -> None:
    bucket.write("a", b"here", None)
    assert pickle.loads(pickle.dumps(bucket)).read("a").content == b"here"


def test_no_bucket_is_no_empty_one(moto_server: int) -> None:
    nowhere = BucketClient("s3://nowhere/store")
    for ask in (lambda: nowhere.list("trials"), lambda: nowhere.write("a", b"", None)):
        with pytest.raises(StoreRefuses, match="there is no such bucket"):
            ask()


def test_a_consoles_folders_are_no_trouble(moto_server: int) -> None:
    for key in ("", "sweeps/", "trials/", "trials/0123/", "trials/0123/weights/"):
        moto.put(moto_server, f"a/store/{key}")
    open_store(URL).pull()


@pytest.mark.parametrize("prefix", ["a#1", "a?x", "a b", "a%20b", "a+b", "é", "a ", "[a]/b*"])
def test_a_prefix_is_what_it_says(prefix: str, moto_server: int) -> None:
    """A URL would end at # and ?, have one name for `a b` and `a%20b`, and end before a space."""
    moto.put(moto_server, f"{quote(prefix)}/k", b"here")
    assert BucketClient(f"s3://{moto.BUCKET}/{prefix}").read("k").content == b"here"
