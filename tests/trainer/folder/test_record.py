"""The record of a trial through crashes, lost rows and processes that were taken over unawares."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.errors import BadInput, LeaseLost, Stopped
from pipegap.trainer.folder import lease, record
from pipegap.trainer.folder.lease import Held, attempt_path, holder, leased
from pipegap.trainer.folder.record import TrialFolder, tidy
from pipegap.trainer.trial import run_trial
from tests.support import small_sweep
from tests.support.processes import holding
from tests.support.trials import (
    attempt,
    finished,
    main_while,
    row,
    saved,
    state,
    train,
    updates,
    wait_for,
)

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
        record.save(tmp_path, 5, state(5), 1)
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"update": {t}}}\n' for t in range(5)))
    with attempt(tmp_path) as second:
        assert train(second, 6) == 5


def test_an_older_checkpoint_whose_rows_are_there_is_taken(tmp_path: Path) -> None:
    with attempt(tmp_path) as first:
        train(first, 3)
        kept = record.newest_first(tmp_path)[0].path
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


# One process runs a trial at a time: whoever dies, sleeps, or has a wrong clock.

HOLD = """
import sys, time
from pathlib import Path
from pipegap.trainer.folder.lease import leased
with leased(Path(sys.argv[1]), lambda: "done"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "ACQUIRE_TIMEOUT", 0.0)


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """A process that holds the trial of the folder."""
    with holding(HOLD, str(tmp_path)) as (process, _):
        yield process


def take(folder: Path) -> int:
    """The number of the attempt that this process gets."""
    with leased(folder, lambda: "done"):
        newest = lease.attempts(folder)[-1]
        return int(json.loads(newest.read_text())["attempt"])


def held(folder: Path, **facts: object) -> Path:
    """The file of an attempt of this process that has not ended, with other `facts`."""
    assert take(folder) == 1
    path = attempt_path(folder, 1)
    running = {key: fact for key, fact in json.loads(path.read_text()).items() if key != "ended"}
    path.write_text(json.dumps(running | facts))
    return path


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_a_holder_keeps_it_while_it_lives_and_is_named(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    """Of this machine: it is free as soon as the process is dead."""
    with pytest.raises(Held, match=f"process {other.pid} on "):
        take(tmp_path)
    assert len(lease.attempts(tmp_path)) == 1
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert take(tmp_path) == 2


def test_a_process_with_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    path = held(tmp_path)
    assert holder(tmp_path) is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), "process_started": "1"}))
    assert holder(tmp_path) is None


@pytest.mark.parametrize("skew", [-86400.0, 86400.0])
def test_another_machine_counts_by_its_signs_of_life_whatever_the_clocks_say(
    tmp_path: Path, skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + skew)
    path = held(tmp_path, machine="elsewhere", pid=1)
    with pytest.raises(Held):
        take(tmp_path)
    age(path, lease.STALE_AFTER - 5)
    with pytest.raises(Held):
        take(tmp_path)
    age(path, 10)
    assert take(tmp_path) == 2


@pytest.mark.parametrize("content", ["", '{"ended": 1}'], ids=["not yet written", "damaged"])
def test_who_did_not_say_who_it_is_counts_as_another_machine(content: str, tmp_path: Path) -> None:
    attempt_path(tmp_path, 1).write_text(content)
    with pytest.raises(Held):
        take(tmp_path)
    age(attempt_path(tmp_path, 1), lease.STALE_AFTER + 1)
    assert take(tmp_path) == 2


def test_a_holder_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT_EVERY", 0.05)
    path = attempt_path(tmp_path, 1)
    with leased(tmp_path, lambda: "done"):
        age(path, 1000)
        deadline = time.monotonic() + 30
        while lease._age(path) > 500:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_of_many_that_race_one_gets_each_attempt(tmp_path: Path) -> None:
    race = """
import sys
from pathlib import Path
from pipegap.trainer.folder import lease
lease.ACQUIRE_TIMEOUT = 60.0
for _ in range(20):
    with lease.leased(Path(sys.argv[1]), lambda: "done") as mine:
        alone = Path(sys.argv[1]) / "alone"
        alone.touch(exist_ok=False)  # raises if another is inside too
        alone.unlink()
"""
    command = [sys.executable, "-c", race, str(tmp_path)]
    racers = [subprocess.Popen(command) for _ in range(4)]
    assert [racer.wait() for racer in racers] == [0] * 4
    numbers = [lease._number(path) for path in lease.attempts(tmp_path)]
    assert numbers == [*range(1, 81)]


def test_who_was_taken_over_writes_nothing_more(tmp_path: Path) -> None:
    """As after a machine's long sleep: the other found it stale, and trains."""
    folder = TrialFolder(tmp_path, "a")
    writes = (
        lambda: folder.append({"update": 0}),
        lambda: folder.fail({}),
        lambda: folder.resume(0, None),
    )

    def train() -> None:
        with folder.claimed({}, {}):
            attempt_path(tmp_path, 2).touch()
            for write in writes:
                with pytest.raises(LeaseLost):
                    write()

    with pytest.raises(LeaseLost):  # at its end too
        train()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("config.json", "trial_id", "attempt-000001.json", "attempt-000002.json")
    }


def ends(folder: Path) -> list[tuple[str | None, int | None]]:
    """How each attempt ended, and after which update it began to train."""
    read = [json.loads(path.read_text()) for path in lease.attempts(folder)]
    return [(attempt.get("ended"), attempt.get("from_update")) for attempt in read]


def test_the_log_says_how_each_attempt_ended(tmp_path: Path) -> None:
    config = small_sweep.config(tmp_path, f"out={tmp_path / 'trial'}")
    seen: list[int] = []

    def fail(row: dict[str, Any]) -> None:
        seen.append(row["update"])
        if len(seen) == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_trial(config, fail)
    with pytest.raises(Stopped):
        run_trial(config, asked_to_stop=lambda: True)
    run_trial(config)
    run_trial(config)
    expected = [("ZeroDivisionError", 0), ("Stopped", 5), ("completed", 6)]
    assert ends(tmp_path / "trial") == expected


def test_a_full_disk_leaves_no_attempt_that_would_hold_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lease.json, "dump", full)
        with pytest.raises(BadInput, match="No space"):
            take(tmp_path)
    assert take(tmp_path) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"out=.*/file/trial: must be writable"):
        run_trial(small_sweep.config(tmp_path, f"out={tmp_path / 'file' / 'trial'}"))


GANG = ("runner=pipelined", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
RUNNERS = {"emulated": (), "pipelined": GANG}


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("act", ["taken over by another process", "deleted while its trial ran"])
def test_the_loser_says_one_line_and_fails(
    runner: str, act: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trial"
    words = (*RUNNERS[runner], "num_updates=4000", "eval_every=4000", f"out={out}")

    def lose() -> None:
        metrics = out / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 10)
        if act.startswith("deleted"):
            out.rename(tmp_path / "trash")  # deleted in one step
        else:
            attempt_path(out, 2).touch()

    assert main_while(small_sweep.overrides(tmp_path, *words), lose) == 1
    assert capsys.readouterr().err == f"pipegap trial: {out} was {act}\n"
    assert not (out / "result.json").exists()


@pytest.mark.parametrize(
    ("content", "number"),
    [
        ({"ended": "PeerLost"}, 4),
        ({**lease.new_attempt(4), "pid": 2**22 + 1}, 4),  # a dead process of this machine
        ({}, 5),  # stale: of another machine, which may wake
    ],
)
def test_the_end_of_a_dead_attempt_is_told_in_its_own_file(
    content: dict[str, Any], number: int, tmp_path: Path
) -> None:
    """Unless the attempt is older than what failed."""
    path = attempt_path(tmp_path, 4)
    path.write_text(json.dumps({**content, "from_update": 3}))
    os.utime(path, (0, 0))
    with leased(tmp_path, lambda: "failed", newest_before=3) as held:
        assert held.number == number
    assert json.loads(attempt_path(tmp_path, number).read_text())["ended"] in ("PeerLost", "failed")
    assert json.loads(path.read_text())["from_update"] == 3
    with leased(tmp_path, lambda: "failed", newest_before=number) as held:
        assert held.number == number + 1
