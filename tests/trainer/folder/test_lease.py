"""One process runs a trial at a time: whoever dies, sleeps, or has a wrong clock."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.errors import BadInput, LeaseLost, Stopped
from pipegap.trainer.folder import lease
from pipegap.trainer.folder.lease import Held, attempt_path, holder, leased
from pipegap.trainer.folder.record import TrialFolder
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.processes import holding
from tests.support.trials import main_while, wait_for

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


def change(path: Path, **facts: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


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
    change(path, process_started="1")
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
    config = small.config(tmp_path, f"out={tmp_path / 'trial'}")
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
        run_trial(small.config(tmp_path, f"out={tmp_path / 'file' / 'trial'}"))


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

    assert main_while(small.overrides(tmp_path, *words), lose) == 1
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
    with leased(tmp_path, lambda: "failed", after=3) as held:
        assert held.number == number
    assert json.loads(attempt_path(tmp_path, number).read_text())["ended"] in ("PeerLost", "failed")
    assert json.loads(path.read_text())["from_update"] == 3
    with leased(tmp_path, lambda: "failed", after=number) as held:
        assert held.number == number + 1
