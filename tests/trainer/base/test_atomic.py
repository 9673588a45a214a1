"""A file is whole under its name, whoever else writes it, and temporary files do not pile up."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipegap.trainer.base import atomic
from pipegap.trainer.base.atomic import (
    clean,
    create_json,
    partial,
    partials,
    write_atomically,
    write_json,
)


def test_of_many_writers_each_succeeds_and_the_file_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"

    def write(number: int) -> None:
        write_json(path, [number] * 1000)
        first, *others = json.loads(path.read_text())
        assert {first} == {*others}

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(100)))
    assert partials(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_who_create_a_file_one_does(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those for whom it was not there a moment before."""
    path = tmp_path / "file.json"
    if has_links:
        monkeypatch.setattr(Path, "exists", lambda path: False)
    else:
        monkeypatch.setattr(atomic.os, "link", lambda *paths: os.open("/proc/self/nothing", 0))

    def creates(number: int) -> bool:
        try:
            create_json(path, number)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4 if has_links else 1) as pool:
        created = [*pool.map(creates, range(20))]
    assert created.count(True) == 1
    assert json.loads(path.read_text()) == created.index(True)
    assert [*tmp_path.iterdir()] == [path]


def test_content_name_and_nothing_else_are_on_the_disk_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that is not on the disk is lost with the machine's power."""
    path, synced = tmp_path / "file", []
    fsync = os.fsync

    def spy(opened: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{opened}")), path.exists()))
        fsync(opened)

    monkeypatch.setattr(atomic.os, "fsync", spy)
    write_atomically(path, b"content")
    [(first, was_there), (second, is_there)] = synced
    assert first.name.startswith(".file.")
    assert not was_there
    assert (second, is_there) == (tmp_path, True)


def test_what_is_not_permitted_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def refuse() -> None:
        assert len(partials(tmp_path)) == 1, "asked last, after the content is written"
        raise PermissionError

    with pytest.raises(PermissionError):
        write_atomically(path, b"after", refuse)
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_only_what_nobody_writes_any_more_is_cleaned(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.touch()
    left = tmp_path / ".checkpoint-.4711.partial"  # as older code named it
    left.touch()
    os.utime(left, ns=(0, 0))
    with partial(tmp_path, "file") as (filled, file):
        file.write(b"half")
        clean(tmp_path, before_ns=filled.stat().st_mtime_ns)
        assert {*tmp_path.iterdir()} == {kept, filled}
