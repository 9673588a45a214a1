"""How a process leaves its gang, and on which interface ranks listen."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pipegap.trainer.__main__ import main
from pipegap.trainer.base.errors import BadInput, GangFailed, Stopped
from pipegap.trainer.base.places import CONF
from pipegap.trainer.folder import lease
from pipegap.trainer.ranks.groups import Heartbeat, PeerLost, joined
from pipegap.trainer.ranks.spawn import Parent, listen_on, run_gang
from pipegap.trainer.trial import run_trial
from tests.support import gangs, small_sweep
from tests.support.gpu_rules import Context, NcclLike
from tests.support.processes import alive, children, python
from tests.support.trials import main_while, rows, untimed, wait_for


def leave(error: Exception | None) -> bool:
    """Leaves a gang of one rank by `error`; returns whether its groups are still there."""
    beat = Heartbeat([0.0], 0, [0])
    with joined(dist.HashStore(), 0, 1, 1, torch.device("cpu"), beat, 10):
        if error is not None:
            raise error
    return dist.is_initialized()


needs_lo = pytest.mark.skipif(
    sys.platform != "linux" or "lo" not in dict(map(reversed, socket.if_nameindex())),
    reason="asks Linux for the address of lo",
)


@pytest.fixture
def no_groups_afterwards() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("no_groups_afterwards")
@needs_lo
def test_an_orderly_end_destroys_the_groups() -> None:
    assert not leave(None)
    with pytest.raises(Stopped):
        leave(Stopped(3))
    assert not dist.is_initialized()


@pytest.mark.usefixtures("no_groups_afterwards")
@needs_lo
def test_an_error_does_not_wait_for_a_peer_that_is_gone() -> None:
    """To destroy a group of NCCL would."""
    with pytest.raises(PeerLost):
        leave(PeerLost("gone"))
    assert dist.is_initialized()


NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@pytest.mark.usefixtures("no_groups_afterwards")
@needs_lo
@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", ["lo", "=lo"]), ("192.0.2.1", [None, None])]
)
def test_the_interface_that_has_the_address(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: list[str | None]
) -> None:
    """192.0.2.1 is an address that no machine has (RFC 5737)."""
    assert told(monkeypatch, address) == expected


@pytest.mark.usefixtures("no_groups_afterwards")
@needs_lo
def test_what_the_environment_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "127.0.0.1", GLOO_SOCKET_IFNAME="mine") == ["mine", "=lo"]


def told(monkeypatch: pytest.MonkeyPatch, address: str, **given: str) -> list[str | None]:
    """What the environment says afterwards, with `given` before."""
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    listen_on(address)
    return [environment.get(name) for name in NAMES]


# Whatever befalls a rank ends the whole gang soon, says the first cause, and loses nothing.

Send = Callable[[object], None]
GANG = (
    *("pipeline=pipedream_2bw", "correction=error_feedback", "runner=pipelined"),
    *("pipeline.num_stages=2", "pipeline.num_microbatches=2", "checkpoint_every=7"),
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

    assert main_while(small_sweep.overrides(folder, *words, f"out={out}"), hit) == 1
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
    again = run_trial(small_sweep.config(tmp_path, *words, f"out={out}"))
    expected = run_trial(small_sweep.config(tmp_path, *words, f"out={tmp_path / 'whole'}"))
    assert untimed(again) == untimed(expected)
    assert rows(out) == rows(tmp_path / "whole")


def test_a_stopped_rank_counts_as_hung(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault(tmp_path, 0, signal.SIGSTOP, *GANG, "num_updates=3000", "timeout=10")
    said = "rank 0 made no progress for timeout=10 seconds; the others wait for it"
    assert said in capsys.readouterr().err


def test_no_rank_survives_its_parent(tmp_path: Path) -> None:
    """Killed; test_cli.py has a parent that is asked to stop. Its folder for temporary files
    has a path that is too long for sockets."""
    out, temporary = tmp_path / "gang", tmp_path / ("a" * 100)
    temporary.mkdir()
    words = small_sweep.overrides(tmp_path, *GANG, "num_updates=3000", f"out={out}")
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


# Every schedule starts and ends under NCCL's rules about communicators, evaluation included.

SHAPE = ("batch_size=8", "num_updates=4", "pipeline.num_microbatches=4")
REPLICAS = ("runner=pipelined", "num_replicas=2")
SCHEDULES = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))
WORDS = {
    "dualpipe_v": ("pipeline.num_microbatches=8",),  # which four ranks need
    "pipedream_2bw": ("correction=error_feedback",),
    "constant_delay": ("pipeline.delay=2",),
    "interleaved_1f1b": ("pipeline.num_chunks=2",),
}
"""What a schedule is given beside the shape."""


def config(folder: Path, schedule: str, p: int, *words: str) -> dict[str, Any]:
    microbatches = ["pipeline.num_microbatches=6", "batch_size=6"] if p == 3 else []
    layers = f"model.num_layers={2 * p}"  # some schedules have two parts of the model per rank
    stages = (f"pipeline={schedule}", f"pipeline.num_stages={p}", *WORDS.get(schedule, ()))
    return small_sweep.config(folder, *SHAPE, layers, *stages, *microbatches, *words)


@pytest.mark.long
@pytest.mark.parametrize("p", [*(pytest.param(p, marks=pytest.mark.slow) for p in (2, 3)), 4])
def test_every_schedule_runs(tmp_path: Path, p: int) -> None:
    """The ranks wait for each other where NCCL would; numbers are those of the emulation."""
    configs = [config(tmp_path, schedule, p) for schedule in SCHEDULES]
    # Ranks that go on while a sum is on its way.
    alone = config(tmp_path, "pipedream", p, "clip_scope=stage", "pipeline.num_microbatches=1")
    gangs.all_equal([*configs, alone], gangs.as_rank_of_many)


@pytest.mark.parametrize("p", [1, 2])
def test_replicas_run(tmp_path: Path, p: int) -> None:
    configs = [config(tmp_path, schedule, p, *REPLICAS) for schedule in ("sync", "pipedream_2bw")]
    gangs.all_equal(configs, gangs.as_rank_of_many)


SUM, BROADCAST = ("sum", 0), ("broadcast", 0)


@pytest.mark.parametrize(
    ("of_first", "of_second", "said"),
    [
        ([SUM, BROADCAST], [SUM, BROADCAST], None),
        ([SUM, BROADCAST], [BROADCAST, SUM], "/1 is a broadcast of 3 from rank 0 on rank 1"),
        ([("broadcast", 1)], [BROADCAST], "/1 is a broadcast of 3 from rank 0 on rank 1"),
    ],
)
def test_the_rules_see_collectives_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
    of_first: list[tuple[str, int]],
    of_second: list[tuple[str, int]],
    said: str | None,
) -> None:
    """Two ranks, one after the other, of a communicator that both have built."""
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(dist, name, lambda *_, **__: None)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    store, group, tensor = dist.HashStore(), SimpleNamespace(group_name="g"), torch.zeros(3)
    for rank in (0, 1):
        store.set(f"g/all/{rank}", b"here")
    first, second = NcclLike(store, 0), NcclLike(store, 1)

    def call(like: NcclLike, calls: list[tuple[str, int]]) -> None:
        for kind, source in calls:
            if kind == "sum":
                like.all_reduce(tensor, group=group)
            else:
                like.broadcast(tensor, source, group)

    call(first, of_first)
    if said is None:
        call(second, of_second)
        return
    with pytest.raises(ValueError, match=said):
        call(second, of_second)


@pytest.mark.parametrize(("always", "waits"), [(False, 1), (True, 2)])
def test_to_load_a_kernel_waits_for_messages(always: bool, waits: int) -> None:
    waited: list[int] = []
    context = Context()
    start = context.starting(lambda: SimpleNamespace(wait=lambda: waited.append(1)))
    launch = context.launching("math.sqrt", always=always)
    for _ in range(2):
        start()
        assert launch(4.0) == 2.0
    assert len(waited) == waits


# `torchrun -m pipegap trial` is the same trial: its ranks, the same numbers.

PIPELINE = ("pipeline=pipedream_2bw", "runner=pipelined", "pipeline.num_stages=2")
PIPELINE = (*PIPELINE, "pipeline.num_microbatches=2", "num_updates=8")
GANG_OF_TORCHRUN = (*PIPELINE, "num_replicas=2")


def launcher(num_processes: int) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    return [*torchrun, str(num_processes), "-m", "pipegap", "trial"]


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_trial(tmp_path: Path, replicas: int) -> None:
    gang = (*PIPELINE, f"num_replicas={replicas}")
    words = small_sweep.overrides(tmp_path, *gang, f"out={tmp_path / 'torchrun'}")
    done = python(*launcher(2 * replicas), *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("completed trial") == 1, "one rank speaks"
    ours = run_trial(small_sweep.config(tmp_path, *gang, f"out={tmp_path / 'spawned'}"))
    theirs = json.loads((tmp_path / "torchrun" / "result.json").read_text())
    assert untimed(theirs) == untimed(ours)
    assert rows(tmp_path / "torchrun") == rows(tmp_path / "spawned")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_another_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rank: str
) -> None:
    for key, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    assert main(small_sweep.overrides(tmp_path, *GANG_OF_TORCHRUN)) == 2
    line = "pipeline.num_stages=2: times num_replicas=2 must be torchrun's 2 processes"
    assert (line in capsys.readouterr().err) == (rank == "0"), "one rank speaks"


@pytest.mark.slow  # torchrun gives a rank 30 seconds to end before it kills it
def test_a_rank_that_hangs_ends_them_all(tmp_path: Path) -> None:
    """Within the trial's `timeout` the others notice, whatever group they wait in."""
    out = tmp_path / "torchrun"
    words = small_sweep.overrides(
        tmp_path, *GANG_OF_TORCHRUN, "num_updates=100000", "timeout=5", f"out={out}"
    )
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, *launcher(4), *words], stdout=log, stderr=log)
    try:
        wait_for(lambda: (out / "metrics.jsonl").exists() and len(rows(out)) > 3, seconds=60)
        ranks = children(process.pid)
        assert len(ranks) == 4
        os.kill(ranks[-1], signal.SIGSTOP)
        assert process.wait(timeout=60) != 0
    finally:
        process.kill()
    wait_for(lambda: not any(map(alive, ranks)), seconds=60)
    assert "lost another rank" in (tmp_path / "log").read_text()
