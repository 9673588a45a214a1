"""One suite for both kinds of store, a folder and an object store: what sweeps ask of each.

An object store is one in memory, or of a server that this project did not write."""

import os
import pickle
import shutil
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pipegap import analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.commands.rerun import recorded
from pipegap.sweeps.plan import sweep_record
from pipegap.sweeps.plan.sweep_plan import Round
from pipegap.sweeps.request.command_line import parse_request
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput, Stopped
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.lease import STALE_AFTER, Held
from pipegap.trainer.folder.wellformed import read_result
from pipegap.trainer.store import bucket as requests
from pipegap.trainer.store.bucket import BucketClient, Changed, Meta, StoreAway, StoreRefuses
from pipegap.trainer.store.files import FileStore, require_writable
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.store import SweepStore, TrialState
from pipegap.trainer.trial import run_trial
from tests.support import buckets, small_sweep
from tests.support.buckets import URL, Bucket
from tests.support.trials import after, rows, run, trial_of


@pytest.fixture(params=["folder", "server", "moto_server"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SweepStore:
    if request.param == "folder":
        return open_store(str(tmp_path / "results"))
    request.getfixturevalue(request.param)
    return open_store(URL)


@pytest.fixture
def stored_trial(store: SweepStore, tmp_path: Path) -> Trial:
    return trial_of(store, tmp_path)


def test_a_trial_runs_stops_goes_on_and_is_read(
    store: SweepStore, stored_trial: Trial, tmp_path: Path
) -> None:
    store.require_usable()
    known = {stored_trial.plan.trial_id: stored_trial}
    assert store.started(known) == set()
    with pytest.raises(Stopped):
        run(store, stored_trial, after(1))
    store.pull()
    assert open_store(store.name).started(known) == {*known}
    assert store.state_of(stored_trial) == TrialState.FREE
    assert [*analysis.load(store.folder)["status"]] == ["unfinished"]
    result = run(store, stored_trial)
    assert store.state_of(stored_trial) == TrialState.ENDED
    assert run(store, stored_trial)["final_val_loss"] == result["final_val_loss"]
    store.pull()
    [row] = analysis.load(store.folder).to_dict("records")
    assert (row["status"], row["final_val_loss"]) == ("completed", result["final_val_loss"])
    attempts = [lease.read(path) for path in lease.attempts(stored_trial.folder)]
    assert [attempt["ended"] for attempt in attempts] == ["Stopped", "completed"]
    assert [attempt["attempt"] for attempt in result["attempts"]] == [1, 2]
    assert not [*stored_trial.folder.glob("checkpoint-*")]
    whole = small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}")
    assert run_trial(whole)["final_val_loss"] == result["final_val_loss"]
    assert rows(tmp_path / "whole") == rows(stored_trial.folder)


def test_a_trial_that_runs_is_held(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "results"))
    trial, seen = trial_of(store, tmp_path), list[Any]()

    def look() -> bool:
        if not seen:
            with pytest.raises(Held):
                run(store, trial)
            seen.append(store.state_of(trial))
        return False

    run(store, trial, look)
    assert seen == [TrialState.HELD]


def test_a_failure_is_recorded_and_what_it_saved_is_kept(
    store: SweepStore, stored_trial: Trial
) -> None:
    calls = after(2)

    def fail() -> bool:
        if calls():
            raise OSError("a broken machine")
        return False

    with pytest.raises(OSError, match="a broken machine"):
        run(store, stored_trial, fail)
    store.pull()
    result = read_result(stored_trial.folder)
    assert result is not None
    assert result["status"] == "failed"
    assert store.state_of(stored_trial) == TrialState.FREE
    [spare] = store.spare([stored_trial.folder])
    assert spare.num_files == 1
    assert spare.num_bytes > 1000
    assert run(store, stored_trial)["status"] == "completed"


def test_what_is_spare_is_deleted_and_nothing_else(store: SweepStore, stored_trial: Trial) -> None:
    with pytest.raises(Stopped):
        run(store, stored_trial, after(1))
    store.pull()
    [spare] = store.spare([stored_trial.folder])
    spare.delete()
    assert [*store.spare([stored_trial.folder])] == []
    assert run(store, stored_trial)["status"] == "completed"


def test_a_finished_trial_runs_again_from_the_start(store: SweepStore, stored_trial: Trial) -> None:
    first = run(store, stored_trial)
    store.pull()
    again = recorded(stored_trial.folder, "sync", stored_trial.plan.trial_id, store.folder)
    assert again.folder == stored_trial.folder.absolute()
    store.archive(again)()
    store.pull()
    assert read_result(stored_trial.folder) == first
    restore = store.archive(again)
    store.pull()
    assert read_result(stored_trial.folder) is None
    second = run(store, again)
    restore()
    assert (second["final_val_loss"], second["attempts"][0]["attempt"]) == (
        first["final_val_loss"],
        2,
    )


def test_records_and_reports_reach_others(store: SweepStore, tmp_path: Path) -> None:
    path = store.folder / "sweeps" / "main.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    store.push(path)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    store.pull()
    assert path.read_text() == "{}"


def test_another_machine_sees_a_probe(store: SweepStore) -> None:
    store.require_usable()
    with store.driven(), store.probe() as sees:
        assert sees()
    assert not sees()


def left(folder: Path, name: str, age: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_partial_records_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    records = tmp_path / "results" / "sweeps"
    old = left(records, ".main-micro.json.123.partial", 2 * STALE_AFTER)
    written_now = left(records, ".main-micro.json.456.partial", 0)
    record = left(records, "old.json", 2 * STALE_AFTER)
    words = small_sweep.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")
    request = parse_request(words)
    now = Round.first(request, FileStore(request.results))
    sweep_record.write(now, now.sweeps)
    assert not old.exists()
    assert written_now.exists()
    assert record.exists()


def test_probes_of_killed_drivers_are_deleted(tmp_path: Path) -> None:
    old = left(tmp_path / "trials", ".probe-1", 2 * STALE_AFTER)
    written_now = left(tmp_path / "trials", ".probe-2", 0)
    require_writable(tmp_path)
    assert not old.exists()
    assert written_now.exists()


# An object store is copied, whatever lies in it; what is no store is refused.


def test_a_pull_asks_only_for_what_changed(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: Bucket
) -> None:
    run(objects, trial)
    objects.pull()
    stamp = (trial.folder / "result.json").stat().st_mtime_ns
    before = server.requests.copy()
    objects.pull()
    assert server.requests - before == {"list": 2}, "of trials and sweeps"
    assert (trial.folder / "result.json").stat().st_mtime_ns == stamp
    run(objects, trial_of(objects, tmp_path, "seed=1"))
    for key in server.objects:
        if trial.trial_id in key:
            server.remove(key)
    assert [*analysis.load(URL)["seed"]] == [1], "the other one was deleted there"


def test_a_text_that_changed_is_brought(objects: SweepStore, server: Bucket) -> None:
    for text in (b"b", b"c", b"a"):
        server.write("trials/a/config.json", text)
        objects.pull()
        assert (objects.folder / "trials" / "a" / "config.json").read_bytes() == text


def test_a_result_is_pulled_after_what_belongs_to_it(
    objects: SweepStore, server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows may change after they are listed, and the result be listed all the same."""
    listed = BucketClient.list

    def in_pages(self: BucketClient, prefix: str) -> Sequence[Meta]:
        if prefix != "trials":
            return listed(self, prefix)
        first_page = [meta for meta in listed(self, prefix) if "metrics" in meta.key]
        if (number := next(numbers)) < 2:
            server.write("trials/a/metrics.jsonl", b"rows " * (number + 2))
            server.write("trials/a/result.json", b"of %d rows" % (number + 2))
        return [*first_page, *(m for m in listed(self, prefix) if "metrics" not in m.key)]

    numbers = iter(range(10))
    server.write("trials/a/metrics.jsonl", b"rows")
    objects.pull()
    monkeypatch.setattr(BucketClient, "list", in_pages)
    folder = objects.folder / "trials" / "a"
    for _ in range(3):
        objects.pull()
        if (result := folder / "result.json").exists():
            num_rows = (folder / "metrics.jsonl").read_bytes().count(b"rows")
            assert result.read_bytes() == b"of %d rows" % num_rows
    assert result.exists()


def test_a_result_goes_before_the_rest_of_its_trial(
    objects: SweepStore, trial: Trial, server: Bucket
) -> None:
    """What a pull that is cut leaves in the copy is no finished trial of other rows."""
    run(objects, trial)
    objects.pull()
    folder = f"trials/{trial.trial_id}"
    for name in ("metrics.jsonl", "result.json"):
        server.write(f"{folder}/{name}", server.objects[f"{folder}/{name}"] + b"\n")
    server.fault = lambda method, key: "away" if method == "get" else None
    with pytest.raises(StoreAway):
        objects.pull()
    assert not (trial.folder / "result.json").exists()
    server.fault = lambda method, key: None
    objects.pull()
    for name in ("metrics.jsonl", "result.json"):
        assert (trial.folder / name).read_bytes() == server.objects[f"{folder}/{name}"]


@pytest.mark.parametrize("command", [["list"], ["sweep=main", "scale=micro"], ["prune"], ["rerun"]])
def test_a_store_of_the_former_format_is_refused_in_a_line(
    command: list[str], server: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    server.write("registers/0123456789abcdef.json", b"{}")
    more = {"prune": ["checkpoints=all"], "rerun": ["status=failed"]}.get(command[0], [])
    assert sweeps([*command, *more, f"results={URL}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    copy = open_store(URL).folder
    assert f"results={URL}: is a store of version 0.3.0: `pipegap list results={URL}`" in line
    assert f"copies it to {copy}: bring that to a new prefix by `aws s3 sync`" in line
    assert [*server.objects] == ["registers/0123456789abcdef.json"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://host/bucket", "must be a folder, or begin with s3://"),
        ("s3:/bucket", "must be a folder, or begin with s3://"),
        ("s3://", "must be s3://BUCKET/PREFIX"),
        ("s3://bucket/../x", "must be s3://BUCKET/PREFIX"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        BucketClient(url)


# What a store asks of a bucket: of one in memory, and of a server that is not ours.

SERVERS = ("server", "moto_server")


@pytest.fixture(params=SERVERS)
def client(request: pytest.FixtureRequest) -> BucketClient:
    request.getfixturevalue(request.param)
    return BucketClient(URL)


def test_an_object_is_created_once(client: BucketClient) -> None:
    version = client.write("a/b.json", b"first", None)
    with pytest.raises(Changed):
        client.write("a/b.json", b"second", None)
    assert client.read("a/b.json")[:2] == (b"first", version)


def test_a_version_is_replaced_once(client: BucketClient) -> None:
    first = client.write("a", b"first", None)
    second = client.write("a", b"second", first)
    assert second != first
    with pytest.raises(Changed):
        client.write("a", b"third", first)
    assert client.read("a")[:2] == (b"second", second)
    client.delete(["a"])
    with pytest.raises(Changed):
        client.write("a", b"third", second)
    with pytest.raises(FileNotFoundError):
        client.read("a")


@pytest.mark.parametrize("size", [0, 1, 1000, 1001])
def test_a_large_object_comes_back_in_parts(
    size: int, client: BucketClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(i % 251 for i in range(size))
    client.upload("a/large", content)
    [meta] = client.list("a")
    assert meta.size == size
    monkeypatch.setattr(requests, "CHUNK", 500)
    client.download(meta, tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content


@pytest.mark.parametrize("size", [1, 1001])
def test_no_download_is_of_two_contents(
    size: int, client: BucketClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.upload("a/large", bytes(size))
    [meta] = client.list("a")
    client.upload("a/large", b"1" * size)
    monkeypatch.setattr(requests, "CHUNK", 500)
    with pytest.raises(Changed):
        client.download(meta, tmp_path / "changed")
    client.delete(["a/large"])
    with pytest.raises(FileNotFoundError):
        client.download(meta, tmp_path / "gone")


def test_etags_are_those_of_a_listing(client: BucketClient) -> None:
    etags = {"a/b": client.write("a/b", b"1", None), "a/c": client.upload("a/c", b"2")}
    etags["a/large"] = client.upload("a/large", BytesIO(bytes(requests.CHUNK + 1)))
    assert {meta.key: {"e_tag": meta.e_tag} for meta in client.list("a")} == {
        key: {"e_tag": version["e_tag"]} for key, version in etags.items()
    }


def test_a_copy_has_the_same_bytes(client: BucketClient) -> None:
    client.upload("a/b", b"content")
    client.copy("a/b", "c/d/e")
    assert client.read("c/d/e").content == client.read("a/b").content == b"content"


def test_a_large_object_goes_in_parts(client: BucketClient, tmp_path: Path) -> None:
    content = b"0123456789abcdef" * (1 << 16) * 17  # two requests and a part
    client.upload("a/large", BytesIO(content))
    client.download(client.list("a")[0], tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content
    client.upload("a/large", b"small")
    assert client.read("a/large").content == b"small"


def test_a_listing_is_of_a_folder_and_has_every_page(client: BucketClient) -> None:
    names = ["Ünï cödé", "a b+c&d=e", "%41", "x.json", *map(str, range(2 * buckets.PAGE))]
    for name in names:
        client.upload(f"many/{name}", name.encode())
    client.upload("manyother", b"not below")
    listed = {meta.key: meta for meta in client.list("many")}
    assert listed.keys() == {f"many/{name}" for name in names}
    assert {meta.size for meta in listed.values() if "cöd" in meta.key} == {len(names[0].encode())}
    before = listed["many/x.json"].e_tag
    client.upload("many/x.json", b"another")
    assert {meta.key: meta.e_tag for meta in client.list("many")}["many/x.json"] != before
    client.delete([*listed, "many/gone"])
    assert [*client.list("many")] == []
    assert len(client.list("")) == 1
    client.delete([])


def test_the_servers_clock_tells_the_time_and_leaves_nothing(
    client: BucketClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write("a", b"", None)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    [meta] = client.list("")
    assert 0 <= client.now() - client.read("a").modified < 60
    assert 0 <= client.now() - meta.modified < 60
    assert [meta.key for meta in client.list("")] == ["a"]


def test_another_process_gets_the_same_bucket(client: BucketClient) -> None:
    client.write("a", b"here", None)
    assert pickle.loads(pickle.dumps(client)).read("a").content == b"here"


def test_no_bucket_is_no_empty_one(moto_server: int) -> None:
    nowhere = BucketClient("s3://nowhere/store")
    for ask in (lambda: nowhere.list("trials"), lambda: nowhere.write("a", b"", None)):
        with pytest.raises(StoreRefuses, match="there is no such bucket"):
            ask()


def test_a_consoles_folders_are_no_trouble(moto_server: int) -> None:
    for key in ("", "sweeps/", "trials/", "trials/0123/", "trials/0123/weights/"):
        buckets.put(moto_server, f"a/store/{key}")
    open_store(URL).pull()


@pytest.mark.parametrize("prefix", ["a#1", "a?x", "a b", "a%20b", "a+b", "é", "a ", "[a]/b*"])
def test_a_prefix_is_what_it_says(prefix: str, moto_server: int) -> None:
    """A URL would end at # and ?, have one name for `a b` and `a%20b`, and end before a space."""
    buckets.put(moto_server, f"{quote(prefix)}/k", b"here")
    assert BucketClient(f"s3://{buckets.BUCKET}/{prefix}").read("k").content == b"here"
