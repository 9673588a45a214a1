"""The record of a trial through crashes, lost rows and processes that were taken over unawares."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder import checkpoint, lease, record
from pipegap.trainer.folder.record import TrialFolder, tidy
from tests.support.attempts import attempt, row, saved, train, updates
from tests.support.records import finished, state

RESULT = finished()


@contextmanager
def asleep(path: Path) -> Iterator[TrialFolder]:
    """An attempt that is taken over meanwhile, and told so when it ends."""
    woke = False
    with pytest.raises(LeaseLost), attempt(path) as folder:  # noqa: PT012
        yield folder
        woke = True
    assert woke, "it was told before"


def blind(folder: TrialFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it fell asleep after each check and before what the check permits."""
    monkeypatch.setattr(folder._lease, "require", lambda: None)
    monkeypatch.setattr(folder._metrics, "_permit", lambda: None)


def test_what_a_sleeper_writes_when_it_wakes_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows, its checkpoint, and what its checkpoint would delete."""
    with asleep(tmp_path) as sleeper:
        train(sleeper, 5)
        blind(sleeper, monkeypatch)
        with attempt(tmp_path) as second:
            assert train(second, 5) == 5
            for update in range(5, 9):
                sleeper.append(row(update))
            sleeper.save(9, state(9))
            assert saved(tmp_path) == [(2, 5), (1, 9)]
            second.append(row(5))
            second.save(6, state(6))
            assert saved(tmp_path) == [(2, 6)]
            assert updates(tmp_path) == [*range(6)]
        monkeypatch.undo()
    with attempt(tmp_path) as third:
        assert train(third, 7) == 6
        assert saved(tmp_path) == [(3, 7)]
    assert updates(tmp_path) == [*range(7)]


def test_a_sleeper_that_replaces_the_rows_as_it_wakes_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asleep(tmp_path) as sleeper:
        train(sleeper, 5)
        with attempt(tmp_path) as second:
            train(second, 7)
            with monkeypatch.context() as fence:
                fence.setattr(sleeper._lease, "require", lambda: None)
                fence.setattr(sleeper._lease, "note", lambda **facts: None)
                sleeper.resume(5, None)
            assert updates(tmp_path) == [*range(5)]
            second.append(row(7))
            second.save(8, state(8))
            assert updates(tmp_path) == [*range(8)]


def test_what_a_sleeper_leaves_in_a_finished_folder_goes_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asleep(tmp_path) as sleeper:
        train(sleeper, 5)
        with attempt(tmp_path) as second:
            train(second, 7)
            second.finish(RESULT)
        blind(sleeper, monkeypatch)
        sleeper.save(6, state(6))
        monkeypatch.undo()
    assert saved(tmp_path) == [(1, 6)]
    (tmp_path / ".checkpoint-.0.partial").touch()
    tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "trial_id", "metrics.jsonl", "result.json"),
        *("attempt-000001.json", "attempt-000002.json"),
    }


def test_what_another_process_has_tidied_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_strays", lambda folder: [folder / "gone", folder / "stray"])
    (tmp_path / "stray").touch()
    tidy(tmp_path)
    assert not (tmp_path / "stray").exists()


def test_a_finished_folder_that_a_process_holds_is_left_alone(tmp_path: Path) -> None:
    """It may run the trial again."""
    with attempt(tmp_path) as first:
        train(first, 5)
        tidy(tmp_path)
        assert saved(tmp_path) == [(1, 5)]


def test_a_file_that_is_gone_because_it_was_taken_over_is_no_error_of_its_own(
    tmp_path: Path,
) -> None:
    def fail() -> None:
        with attempt(tmp_path):
            lease.attempt_path(tmp_path, 2).touch()
            raise FileNotFoundError

    with pytest.raises(LeaseLost):
        fail()


@pytest.mark.parametrize("name", [".checkpoint-.4711.partial", ".clock-x.partial"])
def test_the_next_attempt_deletes_what_a_killed_one_left(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    os.utime(tmp_path / name, (0, 0))
    with attempt(tmp_path):
        assert not (tmp_path / name).exists()


def test_a_late_cleaner_deletes_nothing_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fell asleep as soon as it had the trial; the other has begun a checkpoint meanwhile."""
    theirs = tmp_path / ".checkpoint-.0123.partial"
    clean = lease._create

    def create_and_sleep(*arguments: object) -> lease.Lease:
        mine = clean(*arguments)  # type: ignore[arg-type]
        time.sleep(0.02)  # more than the grain of the file system's clock
        theirs.touch()
        return mine

    monkeypatch.setattr(lease, "_create", create_and_sleep)
    with attempt(tmp_path):
        assert theirs.exists()


def test_a_result_names_the_attempts_that_made_it(tmp_path: Path) -> None:
    with attempt(tmp_path, git="one", device_name="cpu"):
        pass  # it trained nothing
    with attempt(tmp_path, git="two", device_name="cpu") as second:
        train(second, 5)
    with attempt(tmp_path, git="three", device_name="cpu") as third:
        third.resume(*(5, third.newest_checkpoint()))  # died before it saved
    lease.attempt_path(tmp_path, 4).write_text("[]")
    started = time.time()
    with attempt(tmp_path, git="five", device_name="gpu") as fifth:
        train(fifth, 7)
        result = fifth.finish(RESULT)
    noted = [
        [made[key] for key in ("attempt", "from_update", "git")] for made in result["attempts"]
    ]
    assert noted == [[2, 0, "two"], [5, 5, "five"]]
    assert result["attempts"][1]["device_name"] == "gpu"
    assert result["attempts"][1]["versions"] is None, "not noted"
    assert started <= result["finished_at"] <= time.time()
    assert json.loads((tmp_path / "result.json").read_text()) == result


def change(path: Path, edit: Callable[[list[bytes]], list[bytes]]) -> None:
    """Edits the lines of a file."""
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))


def altered(**keys: object) -> Callable[[list[bytes]], list[bytes]]:
    """Changes the row of update 2."""
    return lambda lines: [
        *lines[:2],
        json.dumps(json.loads(lines[2]) | keys).encode() + b"\n",
        *lines[3:],
    ]


LACKS, OTHER = "metrics.jsonl lacks ", "metrics.jsonl has other rows than when it was saved\n"

DAMAGE = {
    "a row lost": (lambda lines: [*lines[:2], *lines[3:]], LACKS),
    "the end lost": (lambda lines: lines[:3], LACKS),
    "zeros": (lambda lines: [*lines[:2], bytes(len(lines[2])), *lines[3:]], LACKS),
    "another number": (altered(lr=0.5), OTHER),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_checkpoint_without_its_rows_is_left_aside(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, says = DAMAGE[name]
    path = tmp_path / "metrics.jsonl"
    with attempt(tmp_path) as first:
        train(first, 5)
    written = path.read_bytes().splitlines(keepends=True)
    change(path, damage)
    with attempt(tmp_path) as second:
        assert train(second, 4) == 0
    assert path.read_bytes().splitlines(keepends=True) == written[:4]
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "checkpoint-000000005-000001-" in errors
    assert f"{tmp_path}/{says}" in errors
    with attempt(tmp_path) as third:
        assert train(third, 6) == 4, "the retry's own checkpoint is good"
    assert updates(tmp_path) == [*range(6)]
    assert capsys.readouterr().err == ""


def test_a_checkpoint_of_older_code_does_not_know_its_rows(tmp_path: Path) -> None:
    with attempt(tmp_path) as first:
        train(first, 5)
        checkpoint.save(tmp_path, 5, state(5), 1)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"update": {t}}}\n' for t in range(5)))
    with attempt(tmp_path) as second:
        assert train(second, 6) == 5


def test_an_older_checkpoint_whose_rows_are_there_is_taken(tmp_path: Path) -> None:
    with attempt(tmp_path) as first:
        train(first, 3)
        kept = checkpoint.newest_first(tmp_path)[0].path
        content = kept.read_bytes()
        for update in range(3, 5):
            first.append(row(update))
        first.save(5, state(5))
    kept.write_bytes(content)  # as if it had been killed before it could delete it
    change(tmp_path / "metrics.jsonl", lambda lines: lines[:4])
    with attempt(tmp_path) as second:
        assert train(second, 6) == 3
    assert updates(tmp_path) == [*range(6)]


def test_a_row_that_is_there_twice_is_kept_once(tmp_path: Path) -> None:
    """As older code could write it, when a process that was taken over woke up."""
    with attempt(tmp_path) as first:
        train(first, 5)
    change(tmp_path / "metrics.jsonl", lambda lines: [*lines[:4], lines[2], lines[4]])
    with attempt(tmp_path) as second:
        assert train(second, 6) == 5
    assert updates(tmp_path) == [*range(6)]


def test_a_trial_that_went_on_from_anothers_has_no_rows_before(tmp_path: Path) -> None:
    with attempt(tmp_path) as first:
        first.resume(5, None)
        for update in range(5, 8):
            first.append(row(update))
        first.save(8, state(8))
    with attempt(tmp_path) as second:
        assert train(second, 9) == 8
    assert updates(tmp_path) == [*range(5, 9)]
