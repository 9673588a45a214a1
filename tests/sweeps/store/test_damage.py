"""A store survives people: what is damaged or out of place is named, and everything else goes on.

One suite for a folder and for a bucket.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from analysis.__main__ import main as analysis
from sweeps.__main__ import main as sweeps
from sweeps.cluster.queue import WorkList
from sweeps.plan.sweep_plan import all_planned, plan_sweeps
from sweeps.request.command_line import parse_request
from sweeps.request.expand import Trial
from sweeps.store.opened import open_store
from sweeps.store.store import SweepStore
from tests.support import s3_server, small
from tests.support.reports import with_figures
from tests.support.stored import URL, after, run
from tests.support.trials import rows
from trainer.base.errors import Stopped
from trainer.folder.record import read_result

PREFIX = "a/store"
SWEEP = {
    "base": small.SMALL,
    "grid": {"optimizer": ["adamw"]},
    "arms": {"sync": ["pipeline=sync"], "delay": ["pipeline=pipedream_2bw"]},
    "seeds": [0, 1],
}


class Place(NamedTuple):
    """A store with the four trials of a sweep, of which the last one was stopped."""

    store: SweepStore
    server: s3_server.ServedBucket
    words: list[str]
    trials: list[Trial]

    @property
    def ids(self) -> list[str]:
        return [trial.plan.trial_id for trial in self.trials]

    def register(self, trial_id: str) -> str:
        return f"{PREFIX}/registers/{trial_id}.json"

    def objects(self, trial_id: str) -> list[str]:
        return [key for key in self.server.objects if f"/trials/{trial_id}/" in key]

    def write(self, key: str, content: bytes) -> None:
        self.server.write(f"{PREFIX}/{key}", content)


def made(store: SweepStore, server: s3_server.ServedBucket, folder: Path) -> Place:
    (folder / "a.yaml").write_text(yaml.dump(SWEEP))
    words = [f"sweep={folder / 'a.yaml'}", "scale=micro", f"data.path={small.corpus(folder)}"]
    words.append(f"results={store.name}")
    trials = all_planned(plan_sweeps(parse_request(words)))
    for trial in trials[:-1]:
        run(store, trial)
    with pytest.raises(Stopped):
        run(store, trials[-1], after(1))
    store.pull()
    return Place(store, server, words, trials)


@pytest.fixture(autouse=True, scope="module")
def few_figures() -> Iterator[None]:
    with with_figures(("final_losses",)):
        yield


@pytest.fixture
def folder(server: s3_server.ServedBucket, tmp_path: Path) -> Place:
    return made(open_store(str(tmp_path / "results")), server, tmp_path)


@pytest.fixture
def bucket(server: s3_server.ServedBucket, tmp_path: Path) -> Place:
    return made(open_store(URL), server, tmp_path)


def copied(place: Place) -> None:
    first = place.trials[0].folder
    shutil.copytree(first, f"{first}.bak")


def copied_unfinished(place: Place) -> None:
    last = place.trials[-1].folder
    shutil.copytree(last, f"{last}copy")


def half_copied(place: Place) -> None:
    first = place.trials[0].folder
    (first.parent / "half").mkdir()
    shutil.copy(first / "config.json", first.parent / "half")
    shutil.copy(first / "trial_id", first.parent / "half")


def alien_file(place: Place) -> None:
    (place.trials[0].folder.parent / "README.txt").write_text("mine")


def pipe_as_result(place: Place) -> None:
    os.mkfifo(place.trials[-1].folder / "result.json")


def loop_as_result(place: Place) -> None:
    (place.trials[-1].folder / "result.json").symlink_to("result.json")


def copied_register(place: Place) -> None:
    content = place.server.objects[place.register(place.ids[0])].content
    place.write(f"registers/{place.ids[0]}copy.json", content)


def copied_register_with_a_dot(place: Place) -> None:
    content = place.server.objects[place.register(place.ids[0])].content
    place.write(f"registers/{place.ids[0]}.bak.json", content)


def alien_object(place: Place) -> None:
    place.write("registers/README.txt", b"mine")


def alien_below(place: Place) -> None:
    place.write("registers/a/b.json", b"{}")


def alien_record(place: Place) -> None:
    place.write("sweeps/a/b.json", b"{}")


def torn_register_of_no_trial(place: Place) -> None:
    place.write("registers/0123456789abcdef.json", b'{"format": 1, "tri')


def missing_rows(place: Place) -> None:
    shutil.rmtree(place.store.folder.parent)  # another machine
    for key in place.objects(place.ids[0]):
        del place.server.objects[key]


def torn_rows(place: Place) -> None:
    shutil.rmtree(place.store.folder.parent)
    for key in place.objects(place.ids[0]):
        place.server.write(key, place.server.objects[key].content[:-9])


def empty_rows(place: Place) -> None:
    shutil.rmtree(place.store.folder.parent)
    for key in place.objects(place.ids[0]):
        place.server.write(key, b"")


Damage = Callable[[Place], None]
HARMLESS: dict[str, list[Damage]] = {
    "folder": [
        *(copied, copied_unfinished, half_copied, alien_file),
        *(pipe_as_result, loop_as_result),
    ],
    "bucket": [
        *(copied_register, copied_register_with_a_dot, alien_object, alien_below, alien_record),
        *(torn_register_of_no_trial, missing_rows, torn_rows, empty_rows),
    ],
}
NAMED = {
    copied: ".bak is a copy of trial ",
    copied_unfinished: "copy is a copy of trial ",
    half_copied: "half is a copy of trial ",
    alien_file: "README.txt is no trial's folder",
    pipe_as_result: "result.json is a pipe or a device, where a file must be",
    loop_as_result: "result.json is a loop of links",
    copied_register: "copy.json is a copy of the register of trial ",
    copied_register_with_a_dot: ".bak.json is no object of a store",
    alien_object: "README.txt is no object of a store",
    alien_below: "registers/a/b.json is no object of a store",
    alien_record: "sweeps/a/b.json is no object of a store",
    torn_register_of_no_trial: "registers/0123456789abcdef.json is not whole JSON",
    torn_rows: "metrics.jsonl is not as long as the register of its trial says",
    empty_rows: "metrics.jsonl is not as long as the register of its trial says",
    missing_rows: "metrics.jsonl is gone, though the register of its trial names it",
}


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, damage) for kind, damages in HARMLESS.items() for damage in damages],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_it_is_named_once_and_everything_else_goes_on(
    kind: str,
    damage: Damage,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place: Place = request.getfixturevalue(kind)
    damage(place)
    results = f"results={place.store.name}"
    capsys.readouterr()
    assert sweeps(["list", results, "format=json"]) == 0
    listed = capsys.readouterr()
    assert [row["trial_id"] for row in json.loads(listed.out)] == sorted(place.ids)
    assert_named(listed.err, damage)
    assert sweeps([*place.words, "dry_run=true"]) == 0
    assert "3 done, 1 to do" in (planned := capsys.readouterr()).out
    assert planned.err.count("\n") <= 1
    assert analysis([results, f"out={tmp_path / 'out'}"]) == 0
    assert_named("".join(capsys.readouterr()), damage)
    assert sweeps(["check", results]) == 1
    assert capsys.readouterr().out.count(NAMED[damage]) == 1
    work = WorkList(place.store)
    work.add([place.trials[-1]])
    assert work.queue.next() == place.ids[-1], "the trial that was stopped goes on"
    assert run(place.store, place.trials[-1])["status"] == "completed"


def assert_named(text: str, damage: Damage) -> None:
    lines = [line for line in text.splitlines() if NAMED[damage] in line]
    assert len(lines) == 1, text
    assert lines[0].startswith(("warning: not counted, ", "warning: left out: "))
    assert "Traceback" not in text


def test_a_consoles_folders_are_no_trouble(
    bucket: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("", "registers/", "sweeps/", "trials/", f"trials/{bucket.ids[0]}/"):
        bucket.write(key, b"")
    assert sweeps(["check", f"results={URL}"]) == 0
    assert capsys.readouterr().out == "0 problems, 0 of them mended\n"


def torn_register(place: Place, trial_id: str) -> None:
    key = place.register(trial_id)
    place.server.write(key, place.server.objects[key].content[:-20])


def torn_marker(place: Place, trial_id: str) -> None:
    (place.store.folder / "trials" / trial_id / "trial_id").write_bytes(b"\xff")


def of_another(place: Place, trial_id: str) -> None:
    (place.store.folder / "trials" / trial_id / "trial_id").write_text("0123456789abcdef\n")


BLOCKING = {
    torn_register: ("bucket", "is not whole JSON"),
    torn_marker: ("folder", "trial_id names no trial"),
    of_another: ("folder", "trial_id names another trial"),
}


@pytest.mark.parametrize("damage", BLOCKING, ids=lambda damage: damage.__name__)
def test_nobody_waits_for_a_trial_that_cannot_run_and_it_can_be_mended(
    damage: Callable[[Place, str], None],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind, says = BLOCKING[damage]
    place: Place = request.getfixturevalue(kind)
    whole = run(place.store, place.trials[0])
    damaged = place.ids[:1] if damage is of_another else [place.ids[0], place.ids[-1]]
    for trial_id in damaged:
        damage(place, trial_id)
    work = WorkList(place.store)
    work.add([trial for trial in place.trials if trial.plan.trial_id in damaged])
    assert work.queue.next() is None
    assert len(work) == 0, "it does not count as run by somebody else"
    capsys.readouterr()
    assert sweeps([*place.words, "dry_run=true"]) == 0
    errors = capsys.readouterr().err
    assert 1 <= errors.count("\n") <= 2
    assert errors.startswith("warning: ")
    check = ["check", f"results={place.store.name}"]
    assert sweeps(check) == 1
    assert capsys.readouterr().out.count(says) == len(damaged)
    assert sweeps([*check, "repair=true"]) == 0
    num = len(damaged)
    assert capsys.readouterr().out.endswith(f"{num} problems, {num} of them mended\n")
    assert sweeps(check) == 0
    place.store.pull()
    assert read_result(place.trials[0].folder) == whole
    assert run(place.store, place.trials[0]) == whole
    done = run(place.store, place.trials[-1])
    assert [attempt["attempt"] for attempt in done["attempts"]] == [1, 2], "from its checkpoint"


def test_a_register_is_made_again_on_a_machine_without_a_copy(bucket: Place) -> None:
    """What was not in the objects is lost: a result, and which attempts made the rows."""
    for trial_id in (bucket.ids[0], bucket.ids[-1]):
        torn_register(bucket, trial_id)
    shutil.rmtree(bucket.store.folder.parent)
    assert sweeps(["check", f"results={URL}", "repair=true"]) == 0
    bucket.store.pull()
    assert read_result(bucket.trials[0].folder) is None
    for trial in (bucket.trials[0], bucket.trials[-1]):
        result = run(bucket.store, trial)
        bucket.store.pull()
        assert len(rows(trial.folder)) == result["num_updates"]


def test_an_object_is_uploaded_from_the_copy_of_this_machine(
    bucket: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    [key] = bucket.objects(bucket.ids[0])
    before = bucket.server.objects.pop(key)
    check = ["check", f"results={URL}"]
    assert sweeps(check) == 1
    assert "repair=true uploads the copy of this machine" in capsys.readouterr().out
    assert sweeps([*check, "repair=true"]) == 0
    assert bucket.server.objects[key].content == before.content
    assert sweeps(check) == 0


def test_a_trial_goes_on_without_a_checkpoint_that_is_gone(
    bucket: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    [key] = [key for key in bucket.objects(bucket.ids[-1]) if "checkpoint-" in key]
    del bucket.server.objects[key]
    result = run(bucket.store, bucket.trials[-1])
    assert f"{key.removeprefix(PREFIX + '/')} is gone" in capsys.readouterr().err
    assert result["status"] == "completed"
    assert result["attempts"][0]["from_update"] == 0


def test_a_renamed_folder_gets_its_name_back(
    folder: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    home = folder.trials[0].folder
    home.rename(f"{home}.old")
    check = ["check", f"results={folder.store.name}"]
    assert sweeps(check) == 1
    assert ".old is the folder of trial " in capsys.readouterr().out
    assert sweeps([*check, "repair=true"]) == 0
    assert home.is_dir()
    assert sweeps(check) == 0
