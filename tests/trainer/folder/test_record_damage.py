"""Rows that were lost or altered, and the checkpoints that know better."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipegap.trainer.folder import checkpoint
from tests.support.attempts import attempt, row, train, updates
from tests.support.records import state


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
