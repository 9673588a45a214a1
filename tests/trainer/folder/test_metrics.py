"""Rows: each update once, in order, on the disk, in the file of the process that may write it."""

import json
import os
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.atomic import always
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder.metrics import Metrics, read, row_number, row_of, rows_of


def line(update: int, seconds: float = 0.0) -> bytes:
    return json.dumps({"update": update, "wall_seconds": seconds}).encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_a_row_by_its_line(path: Path) -> None:
    assert row_number(path.parent, 1) is None
    path.write_bytes(line(0) + b"torn\n" + line(2) + line(3)[:-1])
    rows = [row_number(path.parent, number) for number in range(1, 6)]
    assert [row and row["update"] for row in rows] == [0, None, 2, None, None]


@pytest.mark.parametrize(
    ("damaged", "updates"),
    [
        (b"", []),
        (line(0) + line(1)[:-1], [0]),
        (line(0) + bytes(40) + line(1), [0]),
        (line(0) + bytes(40) + b"\n" + line(2), [0, 2]),
        (line(0) + b"\xff\xfe\n" + b"[1]\n" + b'"update"\n' + b"{}\n" + line(1), [0, 1]),
        (line(2) + line(0) + line(1), [0, 1, 2]),
        (line(0)[:-2] + b"\n" + line(1), [1]),
        (line(0)[:-1] + b"," + line(1), []),
        (b'{"update": 1, "x": [0\n' + b"0]}\n" + line(2)[:-1] + b"," + line(3), []),
    ],
)
def test_only_whole_rows_are_read_in_order(path: Path, damaged: bytes, updates: list[int]) -> None:
    path.write_bytes(damaged)
    assert [*read(path)] == updates
    lines = damaged.splitlines(keepends=True)
    assert [*rows_of(lines)] == [*map(row_of, lines)]


def test_of_an_update_written_twice_the_last_counts(path: Path) -> None:
    path.write_bytes(line(0, 1.0) + line(0, 2.0))
    assert read(path)[0].wall_seconds == 2.0


def test_no_file_has_no_rows(path: Path) -> None:
    assert read(path) == {}


def test_a_row_can_be_read_at_once(path: Path) -> None:
    with closing(Metrics(path, [line(0)], always)) as metrics:
        metrics.append({"update": 1})
        assert [*read(path)] == [0, 1]


def test_a_disk_that_takes_a_part_at_a_time_gets_all_of_a_row(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FileIO):
        def write(self, content: Any) -> int:
            return super().write(content[:3])

    with closing(Metrics(path, [line(0)], always)) as metrics, Slow(path, "ab") as slow:
        monkeypatch.setattr(metrics, "_file", slow)
        metrics.append({"update": 1, "train_loss": 2.5})
        assert path.read_bytes() == line(0) + b'{"update": 1, "train_loss": 2.5}\n'
        monkeypatch.undo()


def test_who_knows_that_it_was_taken_over_touches_nothing(path: Path) -> None:
    is_lost = False

    def permit() -> None:
        if is_lost:
            raise LeaseLost

    with closing(Metrics(path, [line(0)], permit)) as metrics:
        path.write_bytes(line(0) + line(1))
        is_lost = True
        for write in (metrics.sync, lambda: metrics.append({"update": 1})):
            with pytest.raises(LeaseLost):
                write()
        with pytest.raises(LeaseLost):
            Metrics(path, [], permit)
    assert path.read_bytes() == line(0) + line(1)
    assert [*path.parent.iterdir()] == [path]


def test_a_row_is_on_the_disk_after_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    with closing(Metrics(path, [], always)) as metrics:
        metrics.append({"update": 0})
        monkeypatch.setattr(os, "fsync", lambda opened: synced.append(path.read_bytes()))
        metrics.sync()
    assert [json.loads(content) for content in synced] == [{"update": 0}]
