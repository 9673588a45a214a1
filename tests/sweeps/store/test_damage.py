"""A store survives people: what is damaged or out of place is named, and everything else goes on.

One suite for a folder and for a bucket. The bucket in memory is there as long as this file's tests
run, so no test of a server may stand beside them.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.analysis.__main__ import main as analysis_main
from pipegap.sweeps.__main__ import main as sweeps
from pipegap.sweeps.cluster.queue import WorkList
from tests.support.trials import Place, run

Damage = Callable[[Place], None]


def copied(place: Place) -> None:
    for name, content in place.files(place.ids[0]).items():
        place.write(f"trials/{place.ids[0]}.bak/{name}", content)


def torn_config_of_no_trial(place: Place) -> None:
    place.write("trials/0123456789abcdef/config.json", b'{"model": ')


def torn_rows(place: Place) -> None:
    rows = place.files(place.ids[0])["metrics.jsonl"]
    place.write(f"trials/{place.ids[0]}/metrics.jsonl", rows[:-9])


NAMED: dict[Damage, tuple[str, ...]] = {
    copied: (".bak is a copy of trial ",),
    torn_config_of_no_trial: ("0123456789abcdef/config.json is not whole JSON",),
    torn_rows: (),
}


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("damage", NAMED, ids=lambda damage: damage.__name__)
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
    assert sorted(row["trial_id"] for row in json.loads(listed.out)) == sorted(place.ids)
    assert_named(listed.err, damage)
    assert sweeps([*place.words, "dry_run=true"]) == 0
    assert "3 done, 1 to do" in (planned := capsys.readouterr()).out
    assert planned.err.count("\n") <= 1
    assert analysis_main([results, f"out={tmp_path / 'out'}"]) == 0
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


DAMAGED_MARKERS = {"torn": b"\xff", "of another trial": b"0123456789abcdef\n"}


@pytest.mark.parametrize("kind", ["folder", "bucket"])
@pytest.mark.parametrize("marker", DAMAGED_MARKERS.values(), ids=[*DAMAGED_MARKERS])
def test_nobody_waits_for_a_trial_that_cannot_run_and_what_is_damaged_can_be_deleted(
    kind: str, marker: bytes, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    place: Place = request.getfixturevalue(kind)
    whole = run(place.store, place.trials[0])
    place.write(path := f"trials/{place.ids[0]}/trial_id", marker)
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
    place.remove(path)
    place.store.pull()
    again = run(place.store, place.trials[0])
    assert again["final_val_loss"] == whole["final_val_loss"]


def test_a_trial_goes_on_without_a_checkpoint_that_is_gone(
    bucket: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody deletes it once it is listed."""
    [key] = [key for key in bucket.server.objects if "checkpoint-" in key]

    def delete(method: str, asked_key: str) -> None:
        if (method, asked_key) == ("get", key):
            bucket.server.remove(key)

    bucket.server.fault = delete
    result = run(bucket.store, bucket.trials[-1])
    assert f"{key} is gone" in capsys.readouterr().err
    assert result["status"] == "completed"
    assert result["attempts"][0]["from_update"] == 0
