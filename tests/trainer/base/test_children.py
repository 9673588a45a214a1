"""Work in the worker: done when the context ends, in order, and its errors are not lost."""

import os
from pathlib import Path

import pytest

from pipegap.trainer.base.children import Worker


def test_all_is_done_in_order_when_the_context_ends(tmp_path: Path) -> None:
    with Worker() as worker:
        worker.do(os.mkdir, tmp_path / "outer")
        worker.do(os.mkdir, tmp_path / "outer" / "inner", mode=0o700)
    assert (tmp_path / "outer" / "inner").is_dir()


def test_who_waits_sees_what_was_begun_or_its_error(tmp_path: Path) -> None:
    with Worker() as worker:
        worker.do(os.mkdir, tmp_path / "now")
        worker.wait()
        assert (tmp_path / "now").is_dir()
    with pytest.raises(FileExistsError), Worker() as worker:  # noqa: PT012
        worker.do(os.mkdir, tmp_path)
        worker.wait()
        pytest.fail("nothing was raised")


def test_without_a_worker_all_is_done_at_once(tmp_path: Path) -> None:
    with Worker(apart=False) as worker:
        worker.do(os.mkdir, tmp_path / "now")
        assert (tmp_path / "now").is_dir()


def test_what_went_wrong_there_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), Worker() as worker:
        worker.do(os.mkdir, tmp_path)


def test_what_has_not_begun_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(tmp_path)
    assert not (tmp_path / "49").exists()


def _interrupted(folder: Path) -> None:
    with Worker() as worker:
        for name in map(str, range(50)):
            worker.do(os.mkdir, folder / name)
        raise KeyboardInterrupt
