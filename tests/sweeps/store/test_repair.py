"""What keeps a trial from running is told. Without it the trial runs again."""

from collections.abc import Callable

import pytest

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.cluster.queue import WorkList
from tests.support.place import Place
from tests.support.stored import run


def torn_register(place: Place, trial_id: str) -> Callable[[], object]:
    key = place.register(trial_id)
    place.server.write(key, place.server.objects[key][:-20])
    return lambda: place.server.remove(key)


def torn_marker(place: Place, trial_id: str) -> Callable[[], object]:
    return marked(place, trial_id, b"\xff")


def of_another(place: Place, trial_id: str) -> Callable[[], object]:
    return marked(place, trial_id, b"0123456789abcdef\n")


def marked(place: Place, trial_id: str, content: bytes) -> Callable[[], object]:
    marker = place.store.folder / "trials" / trial_id / "trial_id"
    marker.write_bytes(content)
    return marker.unlink


KINDS = {torn_register: "bucket", torn_marker: "folder", of_another: "folder"}


@pytest.mark.parametrize("damage", KINDS, ids=lambda damage: damage.__name__)
def test_nobody_waits_for_a_trial_that_cannot_run_and_what_is_damaged_can_be_deleted(
    damage: Callable[[Place, str], Callable[[], object]],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place: Place = request.getfixturevalue(KINDS[damage])
    whole = run(place.store, place.trials[0])
    delete = damage(place, place.ids[0])
    work = WorkList(place.store)
    work.add([place.trials[0]])
    assert work.queue.next() is None
    assert len(work) == 0, "it does not count as run by somebody else"
    capsys.readouterr()
    assert sweeps([*place.words, "dry_run=true"]) == 0
    errors = capsys.readouterr().err
    assert 1 <= errors.count("\n") <= 2
    assert errors.startswith("warning: ")
    delete()
    place.store.pull()
    again = run(place.store, place.trials[0])
    assert again["final_val_loss"] == whole["final_val_loss"]


def test_a_trial_goes_on_without_a_checkpoint_that_is_gone(
    bucket: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    [key] = [key for key in bucket.objects(bucket.ids[-1]) if "checkpoint-" in key]
    bucket.server.remove(key)
    result = run(bucket.store, bucket.trials[-1])
    assert f"{key} is gone" in capsys.readouterr().err
    assert result["status"] == "completed"
    assert result["attempts"][0]["from_update"] == 0
