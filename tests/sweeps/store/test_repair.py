"""What keeps a trial from running is told, and repaired."""

import shutil
from collections.abc import Callable

import pytest

from sweeps.__main__ import main as sweeps
from sweeps.cluster.queue import WorkList
from tests.support.place import PREFIX, Place
from tests.support.stored import URL, run
from tests.support.trials import rows
from trainer.folder.record import read_result


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
