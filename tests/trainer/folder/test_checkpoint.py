"""Which checkpoint a trial goes on from, whatever lies in its folder."""

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from pipegap.trainer.base.atomic import always
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder import checkpoint
from tests.support.records import state


def names(folder: Path) -> list[tuple[int, int]]:
    """Attempt and updates of each, the newest first."""
    return [(saved.attempt, saved.num_updates) for saved in checkpoint.newest_first(folder)]


def test_the_newest_is_that_of_the_last_attempt_then_of_the_last_update(tmp_path: Path) -> None:
    for name in (
        "checkpoint-000000030-000001-aa.pt",  # written by who was taken over
        "checkpoint-000000005-000002-aa.pt",
        "checkpoint-000000010-000002-aa.pt",
        "checkpoint-000000099-aa.pt",  # written before attempts were in the name
        "checkpoint-best.pt",
    ):
        (tmp_path / name).touch()
    assert names(tmp_path) == [(2, 10), (2, 5), (1, 30), (0, 99)]


def test_an_older_attempt_deletes_none_of_a_newer_one(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, state(5), 1)
    [(_, _, path)] = checkpoint.newest_first(tmp_path)
    checkpoint.adopt(path, 2, always)
    assert names(tmp_path) == [(2, 5)]
    checkpoint.save(tmp_path, 30, state(30), 1)
    assert names(tmp_path) == [(2, 5), (1, 30)]
    checkpoint.save(tmp_path, 10, state(10), 2)
    assert names(tmp_path) == [(2, 10)]


def test_an_adopted_one_is_still_verified(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, state(5), 1)
    checkpoint.adopt(checkpoint.newest_first(tmp_path)[0].path, 2, always)
    [(_, _, path)] = checkpoint.newest_first(tmp_path)
    assert checkpoint.load(path)["num_updates"] == 5
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="truncated or altered"):
        checkpoint.load(path)


def test_who_was_taken_over_saves_and_adopts_nothing(tmp_path: Path) -> None:
    def refuse() -> None:
        raise LeaseLost

    checkpoint.save(tmp_path, 5, state(5), 1)
    [(_, _, path)] = checkpoint.newest_first(tmp_path)
    with pytest.raises(LeaseLost):
        checkpoint.save(tmp_path, 10, state(10), 1, refuse)
    with pytest.raises(LeaseLost):
        checkpoint.adopt(path, 2, refuse)
    assert [*tmp_path.iterdir()] == [path]


def test_files_of_existing_stores_keep_their_name_and_format(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 5, state(5), 3)
    [path] = tmp_path.iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"checkpoint-000000005-000003-{digest[:16]}.pt"
    assert torch.load(path) == {"format": 2, **state(5)}


def test_a_state_that_the_disk_has_no_space_for_is_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch hides the reason behind an error of its own."""

    def full(saved: object, file: Any) -> None:
        file.write(b"a part of it")
        try:
            raise OSError(errno.ENOSPC, "no space")
        except OSError:
            raise RuntimeError("unexpected pos") from None

    checkpoint.save(tmp_path, 5, state(5), 1)
    before = [*tmp_path.iterdir()]
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, 10, state(10), 1)
    assert [*tmp_path.iterdir()] == before
