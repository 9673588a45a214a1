"""What only an object store can do wrong."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from pipegap.analysis import load
from pipegap.sweeps.request.expand import Trial
from pipegap.trainer.base.errors import LeaseLost, Stopped
from pipegap.trainer.folder import record
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.folder.wellformed import RESULT, read_result
from pipegap.trainer.store import opened
from pipegap.trainer.store.bucket import BucketClient, Changed, StoreAway
from pipegap.trainer.store.driver import KEY
from pipegap.trainer.store.opened import BucketStore, open_store
from pipegap.trainer.store.store import SweepStore, TrialState
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.buckets import URL, Bucket
from tests.support.trials import after, rows, run, trial_of, untimed, work


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is uploaded all the time."""
    monkeypatch.setattr(opened, "UPLOAD_EVERY", 0.01)


def of_trials(server: Bucket) -> list[str]:
    return [key for key in server.objects if key.startswith("trials/")]


FILES = ["attempt-000001.json", "config.json", "metrics.jsonl", "result.json", "trial_id"]


def test_what_the_store_says_names_no_folder_of_a_machine(
    objects: SweepStore, trial: Trial, tmp_path: Path, server: Bucket
) -> None:
    run(objects, trial)
    folder = f"trials/{trial.trial_id}"
    assert sorted(of_trials(server)) == [f"{folder}/{name}" for name in FILES]
    config = json.loads(server.objects[f"{folder}/config.json"])
    assert (config["results"], config["out"]) == (URL, None)
    cache = str(tmp_path / "cache").encode()
    assert not [key for key, content in server.objects.items() if cache in content]


class Cut:
    """Runs a trial in a bucket, and keeps what the bucket held after each request."""

    def __init__(self, server: Bucket, trial: Trial) -> None:
        self._server, self._trial = server, trial
        self.moments: list[dict[str, bytes]] = []

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        def keep(method: str, key: str) -> None:
            if method in ("put", "delete", "copy") and self._trial.trial_id in key:
                self.moments.append(of_trial(self._server, self._trial))

        self._server.fault = keep
        run(BucketStore(URL), self._trial, slowly(stop))
        self.moments.append(of_trial(self._server, self._trial))
        self._server.fault = lambda method, key: None


def of_trial(server: Bucket, trial: Trial) -> dict[str, bytes]:
    """File of the trial's folder → content."""
    prefix = f"trials/{trial.trial_id}/"
    contents = server.objects
    return {k.removeprefix(prefix): contents[k] for k in contents if k.startswith(prefix)}


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A new folder with these files, as a copy by other tools has them: of processes long gone."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (0, 0))
    return folder


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("seed", range(3))
def test_a_trial_that_is_cut_after_any_request_goes_on_to_the_same_bits(
    seed: int,
    objects: SweepStore,
    tmp_path: Path,
    server: Bucket,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the bucket, and in a copy of it in files. No checkpoint that was uploaded is of no use,
    and nothing is there of a result before the rest."""
    generator = random.Random(seed)
    words = ("checkpoint_every=2", "pipeline=pipedream_2bw", "correction=error_feedback")
    trial = trial_of(objects, tmp_path, *words)
    whole = untimed(run_trial(small_sweep.config(tmp_path, *words, f"out={tmp_path / 'whole'}")))
    num_saved, files = 0, dict[str, bytes]()
    for number in range(4):
        server.restore({f"trials/{trial.trial_id}/{name}": files[name] for name in files})
        cut = Cut(server, trial)
        cut.run()
        for i, moment in enumerate(cut.moments):
            folder = written(tmp_path / f"moment {number} {i}", moment)
            if (result := read_result(folder)) is not None:
                assert untimed(result) == whole
                assert rows(folder) == rows(tmp_path / "whole")
                attempts = {f"attempt-{a['attempt']:06d}.json" for a in result["attempts"]}
                assert {"config.json", "trial_id", *attempts} <= moment.keys()
                continue
            newest = TrialFolder(folder, trial.trial_id).newest_checkpoint()
            num_there = record.newest_first(folder)[0].num_updates if newest else 0
            assert num_there >= num_saved, "no work is lost again"
            num_saved = num_there
        assert "is not resumed from" not in capsys.readouterr().err
        assert {*cut.moments[-1]} - {f"attempt-{i:06d}.json" for i in range(1, 9)} == {*FILES[1:]}
        unfinished = [moment for moment in cut.moments if RESULT not in moment]
        files = generator.choice(unfinished)
        num_saved = max(
            (int(name.split("-")[1]) for name in files if "checkpoint-" in name), default=0
        )
    config = small_sweep.config(tmp_path, *words, f"out={written(tmp_path / 'in files', files)}")
    assert untimed(run_trial(config)) == whole
    assert rows(tmp_path / "in files") == rows(tmp_path / "whole")


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("place", ["server", "moto_server"])
def test_a_store_is_copied_to_a_bucket_and_back(
    place: str, is_finished: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As by `aws s3 sync`: file by file, under the same paths."""
    request.getfixturevalue(place)
    in_files, in_bucket = open_store(str(tmp_path / "first")), BucketStore(URL)
    whole = run_trial(small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}"))
    trial = trial_of(in_files, tmp_path)
    with nullcontext() if is_finished else pytest.raises(Stopped):
        run(in_files, trial, (lambda: False) if is_finished else after(1))
    bucket = BucketClient(URL)
    for path in in_files.folder.rglob("*"):
        if path.is_file():
            bucket.upload(str(path.relative_to(in_files.folder)), path.read_bytes())
    in_bucket.pull()
    assert (
        load(in_bucket.folder)
        .drop(columns="folder")
        .equals(load(in_files.folder).drop(columns="folder"))
    )
    there = trial_of(in_bucket, tmp_path)
    result = run(in_bucket, there)
    assert untimed(result) == untimed(whole)
    assert len(result["attempts"]) == 1 + (not is_finished), "what was done counts"
    for meta in bucket.list(""):
        (path := tmp_path / "second" / meta.key).parent.mkdir(parents=True, exist_ok=True)
        bucket.download(meta, path)
    back = open_store(str(tmp_path / "second"))
    [row] = load(back.folder).to_dict("records")
    assert (row["status"], row["final_val_loss"]) == ("completed", whole["final_val_loss"])
    assert back.state_of(trial_of(back, tmp_path)) == TrialState.ENDED
    assert rows(trial_of(back, tmp_path).folder) == rows(tmp_path / "whole")


AT_WORK = """
import sys
import time
from pathlib import Path
from pipegap.trainer.store import opened
from pipegap.trainer.store.opened import BucketStore
from tests.support.trials import run, trial_of

opened.UPLOAD_EVERY = 0.01
store = BucketStore(sys.argv[1])
run(store, trial_of(store, Path(sys.argv[2])), lambda: time.sleep(0.5))
"""


@pytest.mark.usefixtures("moto_server")
def test_the_next_driver_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    store, bucket = BucketStore(URL), BucketClient(URL)
    trial = trial_of(store, tmp_path)
    with subprocess.Popen([sys.executable, "-c", AT_WORK, URL, str(tmp_path)]) as killed:
        while not any("checkpoint-" in meta.key for meta in bucket.list("trials")):
            assert killed.poll() is None
            time.sleep(0.05)
        killed.kill()
    assert "ended" not in json.loads(bucket.read(KEY).content)
    result = run(store, trial)
    assert [attempt["attempt"] for attempt in result["attempts"]] in ([1, 2], [2])
    store.pull()
    run_trial(small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}"))
    assert rows(tmp_path / "whole") == rows(trial.folder)
    assert not any("checkpoint-" in meta.key for meta in bucket.list("trials"))


def dead(content: bytes) -> bytes:
    """As if the process that it tells of had ended."""
    return content.replace(b'"process_started": "', b'"process_started": "before ')


def checkpoints(server: Bucket) -> dict[str, bytes]:
    return {key: content for key, content in server.objects.items() if "checkpoint-" in key}


def slowly(ask: Callable[[], bool]) -> Callable[[], bool]:
    """Gives the thread that uploads its turn between two updates."""

    def asks() -> bool:
        time.sleep(0.1)
        return ask()

    return asks


def test_rows_that_grew_by_little_come_with_a_checkpoint(server: Bucket, tmp_path: Path) -> None:
    """A checkpoint knows its rows: without them it would be no use to who goes on."""
    upload = opened.Upload(BucketClient(URL), "trials/a", tmp_path, {})
    (tmp_path / "attempt-000001.json").write_text("{}")
    content = b"many rows\n" * 100

    def uploaded() -> bytes:
        upload._push_new()
        return server.objects["trials/a/metrics.jsonl"]

    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert uploaded() == content
    (tmp_path / "metrics.jsonl").write_bytes(content + b"one more\n")
    assert uploaded() == content
    (tmp_path / "checkpoint-000100.pt").write_bytes(b"weights")
    assert uploaded() == content + b"one more\n"
    (tmp_path / "metrics.jsonl").write_bytes(content * 2)
    assert uploaded() == content * 2, "that is a lot"


def attempted(folder: Path, number: int, started_at: float, **files: bytes) -> opened.Upload:
    """An attempt at a trial as its folder says it, after what the bucket has was fetched."""
    folder.mkdir(exist_ok=True)
    upload = opened.Upload(BucketClient(URL), "trials/a", folder, {})
    upload.fetch()
    begun = json.dumps({"attempt": number, "started_at": started_at}).encode()
    written(folder, {f"attempt-{number:06d}.json": begun, "metrics.jsonl": b"rows", **files})
    return upload


@pytest.mark.parametrize("key", ["a.json", "metrics.jsonl", "result.json"])
def test_a_trial_is_that_of_its_newest_attempt(key: str, server: Bucket, tmp_path: Path) -> None:
    """Though the older one was about to write this object when the newer one began."""
    older = attempted(tmp_path / "1", 1, 0.5)
    older._push()
    finished = {"metrics.jsonl": b"all rows of 1", "result.json": b"{}", "a.json": b"1"}
    written(tmp_path / "1", finished)
    newer = attempted(tmp_path / "2", 2, 0.6, **{"metrics.jsonl": b"rows of 2"})
    moments: list[str] = []

    def begin(method: str, asked_key: str) -> None:
        if (method, asked_key, moments) == ("put", f"trials/a/{key}", []):
            moments.append(asked_key)
            newer._push()

    server.fault = begin
    with suppress(Changed, LeaseLost):
        while older._push(is_end=True):
            pass
    assert moments
    with pytest.raises(LeaseLost):
        older._push(is_end=True)
    newer._push()
    assert server.objects["trials/a/metrics.jsonl"] == b"rows of 2"
    assert "trials/a/result.json" not in server.objects


def test_of_two_that_begin_at_once_the_first_has_the_trial(server: Bucket, tmp_path: Path) -> None:
    first = attempted(tmp_path / "1", 1, 0.5)
    second = attempted(tmp_path / "2", 1, 0.6, **{"metrics.jsonl": b"others"})
    first._push()
    objects = server.objects
    with pytest.raises(LeaseLost):
        second._push()
    assert server.objects == objects


def test_who_has_not_begun_uploads_nothing_of_what_was_fetched(
    server: Bucket, tmp_path: Path
) -> None:
    """Who runs the trial until then may be writing it."""
    older = attempted(tmp_path / "1", 1, 0.5)
    older._push()
    newer = opened.Upload(BucketClient(URL), "trials/a", tmp_path / "2", {})
    newer.fetch()
    written(tmp_path / "1", {"metrics.jsonl": b"more rows", "result.json": b"{}"})
    while older._push(is_end=True):
        pass
    objects = server.objects
    newer._push(is_end=True)
    assert server.objects == objects
    written(tmp_path / "2", {"attempt-000002.json": b"{}"})
    with pytest.raises(LeaseLost):
        newer._push()
    assert server.objects == objects, "it is finished"


@pytest.mark.parametrize("number", range(8))
def test_an_upload_whose_answer_is_lost_is_made_again(
    number: int, server: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "TRY_EVERY", 0.01)
    requests = iter(range(100))

    def lose(method: str, key: str) -> str | None:
        return "lost" if next(requests) == number else None

    files = {"config.json": b"{}", "checkpoint-1-a.pt": b"1", "result.json": b"{}"}
    upload = attempted(tmp_path / "1", 1, 0.5, **files)
    server.fault = lose
    upload._push_all()
    assert {key.removeprefix("trials/a/") for key in server.objects} == {
        *files,
        "attempt-000001.json",
        "metrics.jsonl",
    }


def test_nothing_is_deleted_because_it_seems_to_be_gone(server: Bucket, tmp_path: Path) -> None:
    """A file that is renamed while a folder is listed may not be listed; people delete caches."""
    folder = tmp_path / "work"
    files = {"attempt-000001.json": b"{}", "checkpoint-000100.pt": b"weights"}
    upload = opened.Upload(BucketClient(URL), "trials/a", written(folder, files), {})
    upload._push()
    objects = server.objects
    assert len(objects) == len(files)
    (folder / "checkpoint-000100.pt").unlink()
    upload._push()
    assert server.objects == objects
    written(folder, {"checkpoint-000200.pt": b"more"})
    upload._push()
    assert [*checkpoints(server)] == ["trials/a/checkpoint-000200.pt"]
    objects = server.objects
    shutil.rmtree(folder)
    upload._push()
    upload._push(is_end=True)
    assert server.objects == objects


def test_an_upload_mends_what_others_did_to_the_trial(server: Bucket, tmp_path: Path) -> None:
    files = {"checkpoint-000100.pt": b"weights", "config.json": b"{}", "a.json": b"1"}
    upload = attempted(tmp_path / "1", 1, 0.5, **files)
    upload._push()
    objects = server.objects
    for key in objects:
        for damage in (server.remove, lambda key: server.write(key, b"of others")):
            if "attempt-" not in key:
                damage(key)
                upload._push()
                assert server.objects == objects, key


def test_what_was_saved_outlives_an_attempt_that_could_not_fetch_it(
    objects: SweepStore, trial: Trial, server: Bucket
) -> None:
    with pytest.raises(Stopped):
        run(objects, trial, after(1))
    before = checkpoints(server)
    assert before
    server.fault = lambda method, key: "away" if "checkpoint-" in key else None
    with pytest.raises(StoreAway):
        run(objects, trial)
    server.fault = lambda method, key: None
    assert checkpoints(server) == before
    assert run(objects, trial)["attempts"][0]["attempt"] == 1


@pytest.mark.usefixtures("often")
def test_a_stale_worker_changes_nothing_of_what_the_next_one_makes(
    objects: SweepStore, trial: Trial, server: Bucket, tmp_path: Path
) -> None:
    """The driver was taken over while its worker was cut off: it still trains, and uploads."""
    heirs: list[object] = []

    def taken_over() -> bool:
        if not heirs and checkpoints(server):
            heirs.append(None)
            now = server.objects
            server.write(
                KEY, now[KEY].replace(b'"process_started": "', b'"process_started": "dead')
            )
            server.fault = lambda method, key: None
            heirs[0] = run(BucketStore(URL), trial)
        return False

    with objects.driven(), pytest.raises(LeaseLost):
        work(objects, trial, slowly(taken_over))
    objects.pull()
    assert read_result(trial.folder) == heirs[0]
    whole = small_sweep.config(tmp_path, f"out={tmp_path / 'whole'}")
    run_trial(whole)
    assert rows(tmp_path / "whole") == rows(trial.folder)
    with objects.driven():
        for spare in objects.spare([trial.folder]):
            spare.delete()
    assert not checkpoints(server), "what it uploaded in vain is pruned"


def test_a_worker_whose_driver_was_taken_over_begins_no_trial(
    objects: SweepStore, trial: Trial, server: Bucket
) -> None:
    with objects.driven():
        server.write(KEY, b'{"writer": "the heir"}')
        before = server.objects
        with pytest.raises(LeaseLost, match="has another driver"):
            work(objects, trial)
        assert server.objects == before


@pytest.mark.usefixtures("often")
def test_a_network_that_is_cut_for_long_costs_no_work(
    objects: SweepStore, trial: Trial, server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "TRY_EVERY", 0.01)
    failed = iter(range(20))

    def cut() -> bool:
        server.fault = lambda method, key: None if next(failed, None) is None else "away"
        return False

    result = run(objects, trial, slowly(cut))
    assert [attempt["attempt"] for attempt in result["attempts"]] == [1]
    objects.pull()
    assert read_result(trial.folder) == result


def test_a_store_that_stays_away_ends_the_trial(
    objects: SweepStore, trial: Trial, server: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "TRY_EVERY", 0.01)
    monkeypatch.setattr(opened, "TRY_FOR", 0.1)

    def cut() -> bool:
        server.fault = lambda method, key: "away"
        return False

    with objects.driven():
        with pytest.raises(StoreAway):
            work(objects, trial, cut)
        server.fault = lambda method, key: None
        assert work(objects, trial)["status"] == "completed"


@pytest.mark.usefixtures("often")
def test_a_result_is_told_last(objects: SweepStore, trial: Trial) -> None:
    """With all that belongs to it: others take its trial for ended."""
    result = {"status": "diverged", "trial_id": trial.trial_id, "final_val_loss": None}
    result |= {"num_updates": 1, "wall_seconds": 1.0, "delays": []}
    with objects.driven(), objects.running(trial.config, trial.plan.trial_id) as running:
        out = Path(running.config["out"])
        (out / "result.json").write_text(json.dumps(result))
        (out / "attempt-000001.json").write_text('{"attempt": 1, "ended": "completed"}')
        (out / "after.json").write_text("{}")
        deadline = time.monotonic() + 60
        while not (trial.folder / "after.json").exists():
            assert time.monotonic() < deadline
            objects.pull()
        assert not (trial.folder / "result.json").exists()
        assert objects.state_of(trial) == TrialState.FREE
    assert objects.state_of(trial) == TrialState.ENDED


def test_a_trial_costs_few_requests(objects: SweepStore, trial: Trial, server: Bucket) -> None:
    with objects.driven():
        server.requests.clear()
        work(objects, trial)
    # The trial is listed when it begins, for its last upload, and for its result.
    assert server.requests == {"get": 1, "list": 3, "put": len(FILES) + 1}, "of the driver two"
