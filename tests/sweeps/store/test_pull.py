"""An object store is copied, whatever lies in it; what is no store is refused."""

import json
from pathlib import Path

import pytest

from pipegap import analysis
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.store.bucket import BucketClient
from pipegap.trainer.store.store import SweepStore
from tests.support.bucket import URL, Bucket
from tests.support.stored import run, trial_of


def write_register(server: Bucket, **files: dict[str, object]) -> None:
    now = {"format": 1, "trial_id": "a", "attempt": 1, "writer": "", "beat": 1, "holder": None}
    server.write("registers/a.json", json.dumps({**now, "files": files}).encode())


def test_a_pull_asks_only_for_what_changed(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: Bucket
) -> None:
    run(objects, trial)
    objects.pull()
    stamp = (trial.folder / "result.json").stat().st_mtime_ns
    before = server.requests.copy()
    objects.pull()
    assert server.requests - before == {"list": 2}
    assert (trial.folder / "result.json").stat().st_mtime_ns == stamp
    run(objects, trial_of(objects, tmp_path, "seed=1"))
    server.remove(f"registers/{trial.plan.trial_id}.json")
    assert [*analysis.load(URL)["seed"]] == [1], "the other one was deleted there"


def test_a_text_that_changed_is_brought(objects: SweepStore, server: Bucket) -> None:
    for text in ("b", "c", "a"):
        write_register(server, **{"config.json": {"text": text}})
        objects.pull()
        assert (objects.folder / "trials" / "a" / "config.json").read_text() == text


def test_no_name_leads_out_of_the_copy(objects: SweepStore, server: Bucket) -> None:
    write_register(server, **{"../../evil": {"text": "x"}})
    with pytest.warns(UserWarning, match="must be a path in the trial's folder"):
        objects.pull()


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
