"""An object store is copied, whatever lies in it; what is no store is refused."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from pipegap import analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.bucket import BucketClient, Meta, StoreAway
from pipegap.trainer.store.opened import open_store
from pipegap.trainer.store.store import SweepStore
from tests.support.bucket import URL, Bucket
from tests.support.stored import run, trial_of


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
