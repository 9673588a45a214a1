"""Damaged files, full disks: one line that names the file, or it goes on as if absent."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.__main__ import main as sweeps
from pipegap.trainer.__main__ import main
from pipegap.trainer.base.atomic import always
from pipegap.trainer.base.cli import end_with
from pipegap.trainer.base.errors import LeaseLost
from pipegap.trainer.folder import lease, record, wellformed
from pipegap.trainer.folder.wellformed import (
    Metrics,
    read_result,
    read_rows,
    row_number,
    row_of,
    rows_of,
)
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.trials import Stop, finished, rows, state, stop_at, untimed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of a trial that was interrupted after update 7, with a checkpoint after 5, and of
    one that was not."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.raises(Stop):
        run_trial(small_sweep.config(folder, f"out={folder / 'trial'}"), stop_at(7))
    run_trial(small_sweep.config(folder, f"out={folder / 'whole'}"))
    return folder


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    """The folder of the interrupted one, in a folder of the test's own."""
    shutil.copytree(made / "corpus", tmp_path / "corpus")
    return Path(shutil.copytree(made / "trial", tmp_path / "trial"))


def resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of the command that goes on with the trial, without its progress."""
    path = folder.parent / "config.json"
    path.write_text(json.dumps(small_sweep.config(folder.parent, f"out={folder}")))
    code = main(["--config", str(path)])
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return code, "".join(line for line in lines if not line.startswith("update "))


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def other_bytes(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-1])
    return path


def folder_instead(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.mkdir()
    return path


def other_state(folder: Path, **changes: Any) -> Path:
    """A checkpoint that its digest says is whole."""
    [(_, _, path)] = record.newest_first(folder)
    held = record.load(path) | changes
    path.unlink()
    record.save(folder, 5, held, 1, always)
    [(_, _, path)] = record.newest_first(folder)
    return path


def not_pickled(folder: Path) -> Path:
    other_state(folder)
    [(_, _, path)] = record.newest_first(folder)
    path.write_bytes(b"[]")
    digest = record._digest(path)
    return path.rename(path.with_name(f"checkpoint-000000005-000001-{digest}.pt"))


def marker(folder: Path) -> Path:
    (folder / "trial_id").write_bytes(b"\xff\n\n")
    return folder / "trial_id"


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a checkpoint cut off": (
        lambda folder: other_bytes(record.newest_first(folder)[0].path),
        "is truncated or altered; delete it",
    ),
    "a checkpoint of something else": (not_pickled, "is no checkpoint; delete it"),
    "a checkpoint of a wrong type": (
        lambda folder: other_state(folder, delays="x"),
        "is no checkpoint (is not what was written (delays: ",
    ),
    "a checkpoint of older code": (
        lambda folder: other_state(folder, format=1),
        "is of another version of this code; delete it to start the trial anew",
    ),
    "a checkpoint of another trial": (
        lambda folder: other_state(folder, trial_id="theirs"),
        "is of trial theirs, not ",
    ),
    "an id that is no text": (marker, "names no trial: delete it if this is"),
    "a result in a folder": (
        lambda folder: folder_instead(folder / "result.json"),
        "is a folder, where a file must be",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_a_line_and_nothing_is_written(
    name: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, says = REFUSED[name]
    path = damage(stopped)
    before = tree(stopped)
    code, errors = resumed(stopped, capsys)
    assert (code, errors.count("\n")) == (2, 1)
    assert f"={path}: {says}" in errors
    assert tree(stopped) == before


LEFT_ASIDE: dict[str, tuple[str, str]] = {
    "an attempt that is a list": ("attempt-000001.json", "[1]"),
    "a result without its loss": ("result.json", '{"status": "completed"}'),
    "a config that is a list": ("config.json", "[1]"),
}


@pytest.mark.parametrize("name", LEFT_ASIDE)
def test_it_is_left_aside_and_the_trial_ends_as_it_would_have(
    name: str, stopped: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, content = LEFT_ASIDE[name]
    (stopped / file).write_text(content)
    os.utime(stopped / file, (0, 0))
    assert resumed(stopped, capsys) == (0, "")
    whole, result = read_result(made / "whole"), read_result(stopped)
    assert whole is not None
    assert result is not None
    assert untimed(result) == untimed(whole)
    assert rows(stopped) == rows(made / "whole")


def test_a_checkpoint_of_an_update_that_never_was_costs_no_time(stopped: Path) -> None:
    [(_, _, path)] = record.newest_first(stopped)
    path.rename(path.with_name(f"checkpoint-{10**15}-000001-aa.pt"))
    result = run_trial(small_sweep.config(stopped.parent, f"out={stopped}"))
    assert result["status"] == "completed"


def test_an_attempt_that_leads_nowhere_or_is_a_folder_holds_nothing(tmp_path: Path) -> None:
    lease.attempt_path(tmp_path, 1).symlink_to("nowhere")
    assert lease.holder(tmp_path) == {}
    lease.attempt_path(tmp_path, 2).mkdir()
    os.utime(lease.attempt_path(tmp_path, 2), (0, 0))
    with lease.leased(tmp_path, lambda: "completed") as held:
        assert held.number == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xff", "is not whole JSON"), (b'{"val_loss": 1}', "update: Field required")],
)
def test_what_is_not_of_the_form_is_said_in_a_line(content: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=r"^is not") as refused:
        wellformed.parse(content, wellformed.ROW)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_older_and_newer_code_wrote_is_of_the_form() -> None:
    for form, content in (
        (wellformed.ROW, {"update": 0, "new": [{}]}),
        (wellformed.ATTEMPT, {}),
        (wellformed.RESULT_FORM, {"status": "failed"}),
        (wellformed.RESULT_FORM, finished(delays=None, new={"a": 1})),
        (wellformed.STATE, state(3, new=None)),
    ):
        wellformed.check(content, form)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 800 KB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=800k", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_said_in_a_line_and_the_trial_goes_on_when_there_is_space(
    tmp_path: Path, tiny_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("num_updates=40", "checkpoint_every=5", f"out={tiny_disk / 'trial'}")
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"0" * 650_000)
    with pytest.raises(SystemExit) as ended:
        end_with(lambda: main(small_sweep.overrides(tmp_path, *words)))
    assert ended.value.code == 1
    errors = capsys.readouterr().err
    assert errors.strip().splitlines()[-1].startswith("pipegap trial: ")
    assert "No space left on device" in errors
    assert "Traceback" not in errors
    ballast.unlink()
    result = run_trial(small_sweep.config(tmp_path, *words))
    expected = run_trial(
        small_sweep.config(tmp_path, "num_updates=40", f"out={tmp_path / 'whole'}")
    )
    assert untimed(result) == untimed(expected)
    assert rows(tiny_disk / "trial") == rows(tmp_path / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_may_not_be_written_is_refused_by_permission(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir(mode=0o500)
    assert sweeps(["sweep=main", "scale=micro", *small_sweep.overrides(tmp_path)]) == 2


# Rows: each update once, in order, on the disk, in the file of the process that may write it.


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
    assert [*read_rows(path)] == updates
    lines = damaged.splitlines(keepends=True)
    assert [*rows_of(lines)] == [*map(row_of, lines)]


def test_of_an_update_written_twice_the_last_counts(path: Path) -> None:
    path.write_bytes(line(0, 1.0) + line(0, 2.0))
    assert read_rows(path)[0].wall_seconds == 2.0


def test_no_file_has_no_rows(path: Path) -> None:
    assert read_rows(path) == {}


def test_a_row_can_be_read_at_once(path: Path) -> None:
    with closing(Metrics(path, [line(0)], always)) as metrics:
        metrics.append({"update": 1})
        assert [*read_rows(path)] == [0, 1]


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
