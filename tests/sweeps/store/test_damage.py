"""A store survives people: what is damaged or out of place is named, and everything else goes on.

One suite for a folder and for a bucket.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.analysis.__main__ import main as analysis
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.cluster.queue import WorkList
from tests.support.trials import Place, run


def copied(place: Place) -> None:
    first = place.trials[0].folder
    shutil.copytree(first, f"{first}.bak")


def copied_register(place: Place) -> None:
    content = place.server.objects[place.register(place.ids[0])]
    place.server.write(f"registers/{place.ids[0]}copy.json", content)


ALIEN = ("registers/0.bak.json", "registers/a/b.json", "sweeps/a/b.json")


def alien(place: Place) -> None:
    for key in ALIEN:
        place.server.write(key, b"{}")


def torn_register_of_no_trial(place: Place) -> None:
    place.server.write("registers/0123456789abcdef.json", b'{"format": 1, "tri')


def torn_rows(place: Place) -> None:
    shutil.rmtree(place.store.folder.parent)
    for key in place.objects(place.ids[0]):
        place.server.write(key, place.server.objects[key][:-9])


Damage = Callable[[Place], None]
HARMLESS: dict[str, list[Damage]] = {
    "folder": [copied],
    "bucket": [copied_register, alien, torn_register_of_no_trial, torn_rows],
}
NAMED: dict[Damage, tuple[str, ...]] = {
    copied: (".bak is a copy of trial ",),
    copied_register: ("copy.json is a copy of the register of trial ",),
    alien: tuple(f"{key} is no object of a store" for key in ALIEN),
    torn_register_of_no_trial: ("registers/0123456789abcdef.json is not whole JSON",),
    torn_rows: ("metrics.jsonl is gone or not whole, though the register of its trial names it",),
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
    work = WorkList(place.store)
    work.add([place.trials[-1]])
    assert work.next() is place.trials[-1], "the trial that was stopped goes on"
    assert run(place.store, place.trials[-1])["status"] == "completed"


def assert_named(text: str, damage: Damage) -> None:
    for says in NAMED[damage]:
        lines = [line for line in text.splitlines() if says in line]
        assert len(lines) == 1, text
        assert lines[0].startswith(("warning: not counted, ", "warning: left out: "))
    assert "Traceback" not in text


# What keeps a trial from running is told. Without it the trial runs again.


def torn_register(place: Place, trial_id: str) -> Callable[[], object]:
    key = place.register(trial_id)
    place.server.write(key, place.server.objects[key][:-20])
    return lambda: place.server.remove(key)


def says(place: Place, trial_id: str, **files: object) -> Callable[[], object]:
    """Makes the register name these files too."""
    document = json.loads(place.server.objects[place.register(trial_id)])
    document["files"] |= files
    place.server.write(place.register(trial_id), json.dumps(document).encode())
    return lambda: place.server.remove(place.register(trial_id))


def object_elsewhere(place: Place, trial_id: str) -> Callable[[], object]:
    return says(place, trial_id, **{"a": {"key": "../a", "size": 1}})


def torn_marker(place: Place, trial_id: str) -> Callable[[], object]:
    return marked(place, trial_id, b"\xff")


def of_another(place: Place, trial_id: str) -> Callable[[], object]:
    return marked(place, trial_id, b"0123456789abcdef\n")


def marked(place: Place, trial_id: str, content: bytes) -> Callable[[], object]:
    marker = place.store.folder / "trials" / trial_id / "trial_id"
    marker.write_bytes(content)
    return marker.unlink


KINDS = {
    **dict.fromkeys([torn_register, object_elsewhere], "bucket"),
    **dict.fromkeys([torn_marker, of_another], "folder"),
}


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
    assert work.next() is None
    assert len(work) == 0, "it does not count as run by somebody else"
    capsys.readouterr()
    assert sweeps([*place.words, "dry_run=true"]) == 0
    errors = capsys.readouterr().err
    assert 1 <= errors.count("\n") <= 2
    assert errors.startswith("warning: ")
    results = f"results={place.store.name}"
    assert sweeps(["prune", results, "checkpoints=all"]) == 0
    assert sweeps(["rerun", results, "force=true", f"trial_id={place.ids[1]}", "dry_run=true"]) == 0
    assert "Traceback" not in capsys.readouterr().err
    if KINDS[damage] == "bucket":
        place.store.archive(place.trials[0])()
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
