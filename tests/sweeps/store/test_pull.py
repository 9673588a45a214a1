"""An object store is copied, whatever lies in it; what is no store is refused."""

import json
import re
from pathlib import Path

import pytest

from pipegap import analysis
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.folder.result import read_result
from pipegap.trainer.store.bucket import BucketClient, StoreRefuses
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.store import SweepStore
from tests.support import s3_server
from tests.support.stored import URL, run, trial_of


def write_register(server: s3_server.ServedBucket, **files: dict[str, object]) -> None:
    now = {"format": 1, "trial_id": "a", "attempt": 1, "writer": "", "beat": 1, "holder": None}
    server.write("a/store/registers/a.json", json.dumps({**now, "files": files}).encode())


def test_a_pull_asks_only_for_what_changed(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: s3_server.ServedBucket
) -> None:
    run(objects, trial)
    objects.pull()
    stamp = (trial.folder / "result.json").stat().st_mtime_ns
    before = server.requests.copy()
    objects.pull()
    assert server.requests - before == {"GET": 2}, "two listings"
    assert (trial.folder / "result.json").stat().st_mtime_ns == stamp
    run(objects, trial_of(objects, tmp_path, "seed=1"))
    server.objects = {k: v for k, v in server.objects.items() if trial.plan.trial_id not in k}
    assert [*analysis.load(URL)["seed"]] == [1], "the other one was deleted there"


def test_a_text_that_changed_is_brought(
    objects: SweepStore, server: s3_server.ServedBucket
) -> None:
    for text in ("b", "c", "a"):
        write_register(server, **{"config.json": {"text": text}})
        objects.pull()
        assert (objects.folder / "trials" / "a" / "config.json").read_text() == text


def test_a_damaged_register_is_told_and_stops_nobody_else(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: s3_server.ServedBucket
) -> None:
    other = trial_of(objects, tmp_path, "seed=1")
    server.write(f"a/store/registers/{trial.plan.trial_id}.json", b"{")
    run(objects, other)
    with pytest.warns(UserWarning, match="left out.*is not whole JSON"):
        objects.pull()
    assert read_result(other.folder) is not None
    with pytest.raises(BadInput, match="is not whole JSON"):
        run(objects, trial)


def test_a_consoles_marker_of_the_folder_of_trials_is_not_spare(
    objects: SweepStore, server: s3_server.ServedBucket
) -> None:
    server.write(f"{URL.removeprefix(f's3://{s3_server.BUCKET}/')}/trials/", b"")
    assert [*objects.spare([objects.folder / "trials" / "mine"])] == []


@pytest.mark.parametrize("name", ["registers//a.json", "registers/.", "trials/../b"])
def test_an_object_that_no_client_can_list_is_named(
    objects: SweepStore, server: s3_server.ServedBucket, name: str
) -> None:
    """As `aws s3 cp` leaves it beside an address that ends in two slashes."""
    server.write(f"a/store/{name}", b"")
    with pytest.raises(StoreRefuses, match=f"delete it by hand: a/store/{re.escape(name)}$"):
        BucketClient(URL).list(name.partition("/")[0])


@pytest.mark.parametrize(
    "file", [{}, {"key": "x"}, {"size": 1}, {"text": "x", "key": "x", "size": 1}], ids=str
)
def test_a_file_without_its_content_is_told(
    objects: SweepStore, server: s3_server.ServedBucket, file: dict[str, object]
) -> None:
    write_register(server, **{"config.json": file})
    with pytest.warns(UserWarning, match="must have a text, or the key and the size"):
        objects.pull()


def test_no_name_leads_out_of_the_copy(objects: SweepStore, server: s3_server.ServedBucket) -> None:
    write_register(server, **{"../../evil": {"text": "x"}})
    with pytest.warns(UserWarning, match="must be a path in the trial's folder"):
        objects.pull()


@pytest.mark.parametrize("prefix", ["a#1", "a?x", "a b", "a%20b", "a+b", "é", "a ", "[a]/b*"])
def test_a_prefix_is_what_it_says(prefix: str, server: s3_server.ServedBucket) -> None:
    """A URL would end at # and ?, have one name for `a b` and `a%20b`, and end before a space."""
    BucketClient(f"s3://{s3_server.BUCKET}/{prefix}").create("k", b"")
    assert [*server.objects] == [f"{prefix}/k"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://host/bucket", "must be a folder, or begin with s3://"),
        ("s3:/bucket", "must be a folder, or begin with s3://"),
        ("s3://", "must be s3://BUCKET/PREFIX"),
        ("s3://bucket/../x", "must be s3://BUCKET/PREFIX"),
        ("s3://nowhere/store", "there is no such bucket"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(
    url: str, why: str, server: s3_server.ServedBucket
) -> None:
    with pytest.raises(BadInput, match=why):
        open_store(url).require_usable()


def test_a_provider_without_conditional_writes_is_refused(
    objects: SweepStore, server: s3_server.ServedBucket
) -> None:
    server.conditional = False
    with pytest.raises(BadInput, match="conditional writes"):
        objects.require_usable()
    assert server.objects == {}
