"""Two ranks: messages, drains, and how soon a killed peer is noticed."""

import os
import signal
import time
from collections.abc import Iterator
from statistics import median

import torch
import torch.distributed as dist

from bench.gpu.device import GPUSetting, Row
from pipegap.trainer.base.errors import GangFailed
from pipegap.trainer.base.machine import synchronize
from pipegap.trainer.base.resources import ranks_may_share_a_gpu
from pipegap.trainer.ranks.groups import Edge, Gang
from tests.support.ranks import IN_A_ROW, Send, on_ranks, ours

MESSAGES = {"cuda": (4, 2**16, 2**26), "cpu": (4, 2**16)}
"""Bytes of the messages that are timed, by type of device."""
ROUNDS, MICROBATCHES = 20, 2


def pair(setting: GPUSetting) -> Iterator[Row]:
    """Yields a row per thing that two ranks do; one that says why not where there is no pair."""
    device = kind = setting.device.type
    if kind == "cuda" and (number := torch.cuda.device_count()) < 2:
        if not ranks_may_share_a_gpu():
            yield {"name": "two ranks", "said": f"skipped: takes two GPUs, {number} is there"}
            return
        device = "cuda:0"
        yield {"name": "two ranks", "said": "share one GPU and take turns: no time says anything"}
    rows: list[Row] = []
    on_ranks(_messages, (MESSAGES[kind],), rows.append, device=device)
    yield from rows
    drains: list[Row] = []
    on_ranks(_drains, (setting.rounds,), drains.append, device=device)
    yield from drains
    yield _killed(device)


def _messages(gang: Gang, send: Send, sizes: tuple[int, ...]) -> None:
    """Sends the seconds of a message there and back, halved, by its size."""
    there, back = Edge("bench", 0, 1), Edge("bench", 1, 0)
    groups = gang.connect([there, back])
    for size in sizes:
        message = torch.zeros(size, dtype=torch.uint8, device=gang.device)
        seconds = []
        for _ in range(ROUNDS):
            synchronize(gang.device)
            started = time.perf_counter()
            for edge in (there, back):
                move = dist.isend if edge.source == gang.place else dist.irecv
                other = edge.target if edge.source == gang.place else edge.source
                work = move(message, other, group=groups[edge])
                assert work is not None
                gang.wait(work)
            synchronize(gang.device)
            seconds.append((time.perf_counter() - started) / 2)
        if gang.records:
            middle = median(seconds)
            rate = {"bytes_per_second": size / middle}
            send({"name": f"a message of {size:,} bytes", "seconds": middle, **rate})


def _drains(gang: Gang, send: Send, rounds: int) -> None:
    """Sends the seconds of an update of 2BW from drain to drain, and of one without a drain."""
    run = ours(gang, MICROBATCHES, "pipedream_2bw", f"device={gang.device.type}")
    once = ours(gang, MICROBATCHES, "pipedream_2bw", f"device={gang.device.type}", updates=1)
    num_updates = IN_A_ROW // MICROBATCHES
    for name, call, number in (
        (f"an update of {num_updates} in a row", run, num_updates),
        ("an update with a drain", once, 1),
    ):
        seconds = []
        for _ in range(rounds + 1):
            gang.heartbeat.beat()
            gang.barrier()
            started = time.perf_counter()
            call()
            synchronize(gang.device)
            gang.barrier()
            seconds.append((time.perf_counter() - started) / number)
        if gang.records:
            send({"name": name, "seconds": median(seconds[1:])})


def _killed(device: str) -> Row:
    """The seconds from the end of a killed rank to the error that names it."""
    dying: list[float] = []
    try:
        on_ranks(_dies, (), dying.append, device=device)
    except GangFailed as error:
        seconds = time.monotonic() - dying[0]
        return {"name": f"a killed peer: {str(error).splitlines()[0]}", "seconds": seconds}
    raise AssertionError("nobody noticed that rank 1 was killed")


def _dies(gang: Gang, send: Send) -> None:
    gang.barrier()
    if gang.place == 1:
        send(time.monotonic())  # one clock for all processes of a machine
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    gang.barrier()
