"""Four drivers share a store while one is killed and clocks differ: each trial completes once."""

import signal
from pathlib import Path

import pytest

from pipegap.trainer.base.status import Status
from tests.support import small
from tests.support.small_sweep import END_TIMEOUT, SmallSweep
from tests.support.trials import wait_for

NUM_TRIALS = 3 * 4
CLOCK = "import time\nclock = time.time\ntime.time = lambda: clock() + 86400\n"
"""The clock of a machine that is a day ahead."""


@pytest.mark.slow
def test_the_others_take_over_what_a_killed_driver_held(tmp_path: Path) -> None:
    words = small.overrides(tmp_path, "seeds=[0,1,2,3]", "num_updates=200", "checkpoint_every=20")
    words.append("advice=null")  # which would ask for longer runs too
    words = [word for word in words if not word.startswith("results=")]
    drivers = [SmallSweep(tmp_path, words) for _ in range(4)]
    killed, *others = drivers
    with killed.start() as victim:
        wait_for(lambda: _runs_a_trial(killed), END_TIMEOUT)
        (tmp_path / "sitecustomize.py").write_text(CLOCK)
        ahead, *rest = others
        started = [ahead.start(PYTHONPATH=str(tmp_path)), *(driver.start() for driver in rest)]
        wait_for(lambda: _num_started(killed) >= 4, END_TIMEOUT)
        victim.send_signal(signal.SIGKILL)
    for process in started:
        said, _ = process.communicate(timeout=END_TIMEOUT)
        assert process.returncode == 0, said
    attempts = killed.attempts()
    assert len(attempts) == NUM_TRIALS
    for of_trial in attempts.values():
        trained = [attempt.get("ended") for attempt in of_trial if "from_update" in attempt]
        assert trained.count(Status.COMPLETED) == 1
        assert trained[-1] == Status.COMPLETED
    # A trial that sees its driver die saves a checkpoint, unless it is killed with it.
    unfinished = [
        attempt
        for of_trial in attempts.values()
        for attempt in of_trial
        if attempt.get("ended") in (None, "Stopped")
    ]
    assert unfinished, "the killed driver held a trial"
    assert len({attempt["pid"] for attempt in unfinished}) <= 2, "nobody else's ended before"


def _num_started(sweep: SmallSweep) -> int:
    return len([*sweep.folder.glob("results/trials/*/attempt-000001.json")])


def _runs_a_trial(sweep: SmallSweep) -> bool:
    return bool(sweep.processes("trial")) and _num_started(sweep) > 0
