"""Whatever befalls a rank ends the whole gang soon, says the first cause, and loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.support import small
from tests.support.processes import alive, children
from tests.support.trials import rows, untimed, wait_for
from trainer.base.errors import BadInput, GangFailed
from trainer.ranks.groups import Heartbeat, PeerLost
from trainer.ranks.spawn import run_gang
from trainer.ranks.supervisor import Parent
from trainer.trial import run_trial

Send = Callable[[object], None]
GANG = (
    "pipeline=pipedream_2bw",
    "correction=error_feedback",
    "runner=pipelined",
    "pipeline.num_stages=2",
    "pipeline.num_microbatches=2",
    "checkpoint_every=7",
    "eval_every=50",
)


def ranks_of(parent: int) -> dict[int, int]:
    """Process of each rank below `parent`, in the order in which they were started."""
    return dict(enumerate(sorted(chain.from_iterable(map(children, children(parent))))))


class Run:
    """`python -m trainer` of a gang, in the background."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.out = folder / "gang"
        words = (*GANG, *words, f"out={self.out}")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer", *small.overrides(folder, *words)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for(lambda: list(self.out.glob("checkpoint*")))
        self.ranks = ranks_of(self.process.pid)
        assert len(self.ranks) == 2

    def error(self) -> str:
        """Waits for its end."""
        _, error = self.process.communicate(timeout=30)
        assert self.process.returncode == 1
        wait_for(lambda: not any(map(alive, self.ranks.values())), seconds=60)
        return error


def assert_ends_as_if_nothing_had_been(folder: Path, run: Run, *words: str) -> None:
    again = run_trial(small.config(folder, *GANG, *words, f"out={run.out}"))
    expected = run_trial(small.config(folder, *GANG, *words, f"out={folder / 'whole'}"))
    assert untimed(again) == untimed(expected)
    assert rows(run.out) == rows(folder / "whole")


def test_a_killed_rank(tmp_path: Path) -> None:
    run = Run(tmp_path, "num_updates=150")
    os.kill(run.ranks[1], signal.SIGKILL)
    assert "rank 1 was killed by SIGKILL" in run.error()
    assert json.loads((run.out / "result.json").read_text())["status"] == "failed"
    assert_ends_as_if_nothing_had_been(tmp_path, run, "num_updates=150")


def test_a_stopped_rank_counts_as_hung(tmp_path: Path) -> None:
    run = Run(tmp_path, "num_updates=3000", "timeout=3")
    os.kill(run.ranks[0], signal.SIGSTOP)
    error = run.error()
    assert "rank 0 made no progress for timeout=3 seconds; the others wait for it" in error


def test_no_rank_survives_its_parent(tmp_path: Path) -> None:
    """Killed; test_stopping.py has a parent that is asked to stop."""
    run = Run(tmp_path, "num_updates=3000")
    run.process.kill()
    run.process.communicate(timeout=30)
    wait_for(lambda: not any(map(alive, run.ranks.values())), seconds=60)
    assert list(run.out.glob("checkpoint*"))
    assert not (run.out / "result.json").exists()


def raising(store: dist.Store, heartbeat: Heartbeat, send: Send, error: Exception) -> None:
    """Rank 1 is the cause; the others notice before they hear of it, and blame each other."""
    heartbeat.beat()
    if heartbeat.rank == 1:
        time.sleep(0.5)
        raise error
    raise PeerLost("connection closed by peer")


@pytest.mark.parametrize("error", [ZeroDivisionError("in a layer"), BadInput("key", 3, "no")])
def test_a_rank_that_raises(error: Exception) -> None:
    expected: Any = BadInput if isinstance(error, BadInput) else GangFailed
    with pytest.raises(expected, match=str(error)) as caught:
        run_gang(raising, (error,), 3, Parent(print, timeout=60))
    assert "connection closed" not in str(caught.value)


def alone(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    heartbeat.beat(waiting=True)
    time.sleep(600)


def test_ranks_that_all_wait_for_each_other() -> None:
    with pytest.raises(GangFailed, match="every rank has waited for another"):
        # The ranks of a busy machine start seconds apart.
        run_gang(alone, (), 2, Parent(print, timeout=8))
