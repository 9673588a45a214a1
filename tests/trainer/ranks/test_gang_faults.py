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

from pipegap.trainer.base.errors import BadInput, GangFailed
from pipegap.trainer.folder import lease
from pipegap.trainer.ranks.groups import Heartbeat, PeerLost
from pipegap.trainer.ranks.spawn import run_gang
from pipegap.trainer.ranks.supervisor import Parent
from pipegap.trainer.trial import run_trial
from tests.support import small
from tests.support.processes import alive, children
from tests.support.trials import main_while, rows, untimed, wait_for

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


def grandchildren(parent: int) -> list[int]:
    """The ranks below a trial's process, in the order in which they were started."""
    return sorted(chain.from_iterable(map(children, children(parent))))


def fault(folder: Path, rank: int, how: signal.Signals, *words: str) -> Path:
    """The folder of a trial that failed: one of its ranks got the signal after a checkpoint."""
    out, before = folder / "gang", grandchildren(os.getpid())
    ranks: list[int] = []

    def hit() -> None:
        wait_for(lambda: list(out.glob("checkpoint*")))
        ranks.extend(pid for pid in grandchildren(os.getpid()) if pid not in before)
        os.kill(ranks[rank], how)

    assert main_while(small.overrides(folder, *words, f"out={out}"), hit) == 1
    assert len(ranks) == 2
    wait_for(lambda: not any(map(alive, ranks)), seconds=60)
    return out


def test_a_killed_rank_ends_the_gang_which_goes_on_as_if_nothing_had_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*GANG, "num_updates=60")
    out = fault(tmp_path, 1, signal.SIGKILL, *words)
    assert "rank 1 was killed by SIGKILL" in capsys.readouterr().err
    failed = json.loads((out / "result.json").read_text())
    assert failed["status"] == "failed"
    assert [attempt["attempt"] for attempt in failed["attempts"]] == [1]
    [attempt] = map(lease.read, lease.attempts(out))
    assert attempt["ended"] in ("failed", "PeerLost"), "one file for an attempt, with its end"
    again = run_trial(small.config(tmp_path, *words, f"out={out}"))
    expected = run_trial(small.config(tmp_path, *words, f"out={tmp_path / 'whole'}"))
    assert untimed(again) == untimed(expected)
    assert rows(out) == rows(tmp_path / "whole")


def test_a_stopped_rank_counts_as_hung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault(tmp_path, 0, signal.SIGSTOP, *GANG, "num_updates=3000", "timeout=3")
    said = "rank 0 made no progress for timeout=3 seconds; the others wait for it"
    assert said in capsys.readouterr().err


def test_no_rank_survives_its_parent(tmp_path: Path) -> None:
    """Killed; test_stopping.py has a parent that is asked to stop. Its folder for temporary files
    has a path that is too long for sockets."""
    out, temporary = tmp_path / "gang", tmp_path / ("a" * 100)
    temporary.mkdir()
    words = small.overrides(tmp_path, *GANG, "num_updates=3000", f"out={out}")
    command = [sys.executable, "-m", "pipegap", "trial", *words]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: list(out.glob("checkpoint*")))
        ranks = grandchildren(process.pid)
        process.kill()
    assert len(ranks) == 2
    wait_for(lambda: not any(map(alive, ranks)), seconds=60)
    assert list(out.glob("checkpoint*"))
    assert not (out / "result.json").exists()


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
