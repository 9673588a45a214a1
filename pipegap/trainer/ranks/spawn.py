"""Starts the ranks of a gang on this machine, and ends all of them when one fails."""

import fcntl
import os
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch.distributed as dist

from pipegap.trainer.base.cli import STOPS
from pipegap.trainer.base.scratch import scratch, socket_base
from pipegap.trainer.ranks.groups import Heartbeat
from pipegap.trainer.ranks.supervisor import (
    START_UP,
    Cause,
    Liveness,
    Parent,
    exit_message,
    is_exit_message,
    supervise,
)

PRELOAD = ["torch", "torch._dynamo", "pipegap.trainer.parts"]
"""What a process without threads imports once, of which every rank is then a fork. torch takes 2 s
of a core, and torch._dynamo, which its optimizers import when they are made, another 2 s. None
starts threads or CUDA when it is imported."""

ASK_FOR_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR: the IPv4 address of an interface."""


class Memory(NamedTuple):
    """Arrays that all processes share: `beats` and `stop` of `Heartbeat`, and as `alive` the times
    (`time.monotonic`) at which each rank's process last gave a sign of life, one per rank."""

    beats: Any
    stop: Any
    alive: Any


@dataclass
class Rank:
    """One process of the gang, as its parent sees it."""

    index: int
    process: ForkServerProcess
    link: Connection
    is_done: bool = False

    def receive(self) -> object:
        """Its next message; a Cause if the process ended without one."""
        try:
            message = self.link.recv()
        except (EOFError, OSError):
            self.process.join()
            message = Cause(0, monotonic(), f"rank {self.index} {_end_of(self.process.exitcode)}")
        self.is_done = is_exit_message(message)
        return message


@dataclass(frozen=True)
class Spawned:
    """The processes of a gang."""

    ranks: Sequence[Rank]
    memory: Memory

    def receive(self, timeout: float) -> Iterator[tuple[int, object]]:
        """Yields (rank, message) as `Ranks.receive` says."""
        running = {rank.link: rank for rank in self.ranks if not rank.is_done}
        for link in wait(list(running), timeout):
            assert isinstance(link, Connection)
            yield running[link].index, running[link].receive()

    def liveness(self) -> list[Liveness]:
        """Returns one entry per rank."""
        moment = monotonic()
        return [
            Liveness(moment - abs(beat), moment - alive, beat < 0)
            for beat, alive in zip(self.memory.beats, self.memory.alive, strict=True)
        ]

    def ask_to_stop(self) -> None:
        """Asks all ranks to stop at their next drain."""
        self.memory.stop[0] = 1


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def run_gang(
    program: Callable[..., None], arguments: Sequence[object], num_ranks: int, parent: Parent
) -> None:
    """Runs a gang on this machine: see `Launch`."""
    with scratch(Path(tempfile.gettempdir()), "pipegap-ranks-") as folder:
        _keep_sockets_short()
        context = ForkServerContext()
        context.set_forkserver_preload(PRELOAD)
        memory = Memory(
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
            context.Array("b", [0], lock=False),
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
        )
        with _started(context, program, arguments, folder / "store", memory) as ranks:
            supervise(ranks, num_ranks, parent)


def _keep_sockets_short() -> None:
    """Has multiprocessing choose now, and for good, the folder of this process's sockets."""
    folder, tempfile.tempdir = tempfile.tempdir, str(socket_base())
    try:
        get_temp_dir()
    finally:
        tempfile.tempdir = folder


@contextmanager
def _started(
    context: ForkServerContext,
    program: Callable[..., None],
    arguments: Sequence[object],
    store: Path,
    memory: Memory,
) -> Iterator[Spawned]:
    """Yields the started ranks; at exit, kills the ranks that are left."""
    ranks: list[Rank] = []
    try:
        for index in range(len(memory.beats)):
            ours, rank_link = context.Pipe()
            process = context.Process(
                target=_rank_main,
                args=(program, str(store), index, memory, rank_link, tuple(arguments)),
                name=f"pipegap-rank-{index}",
            )
            with _without_stops():
                process.start()
            rank_link.close()
            ranks.append(Rank(index, process, ours))
        yield Spawned(ranks, memory)
    finally:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.join()
            rank.link.close()


@contextmanager
def _without_stops() -> Iterator[None]:
    """Processes started in the context do not get `STOPS` before they can ignore them.

    Signals that come meanwhile reach this process at the end of the context.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        resource_tracker.ensure_running()  # unblocks signals, once: so not at the first start
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _rank_main(
    program: Callable[..., None],
    store: str,
    index: int,
    memory: Memory,
    link: Connection,
    arguments: tuple[object, ...],
) -> None:
    parent = threading.Thread(target=_end_with_parent, args=(link, memory, index), daemon=True)
    parent.start()
    for stop in STOPS:
        signal.signal(stop, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)  # of `_without_stops`
    stay_on_loopback()
    rendezvous = dist.FileStore(store, len(memory.beats))
    heartbeat = Heartbeat(memory.beats, index, memory.stop)
    link.send(exit_message(index, lambda: program(rendezvous, heartbeat, link.send, *arguments)))
    link.close()
    os._exit(0)  # not through torch's atexit handlers, which may wait for a peer that is gone


def stay_on_loopback() -> None:
    """Makes gloo listen on loopback only, for ranks that are all on this machine."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def listen_on(address: str) -> None:
    """Makes gloo and NCCL listen on the interface that has this IPv4 address.

    Left alone, gloo listens where the host's own name resolves to, which is often 127.0.1.1, and
    NCCL on an interface that may lead to no other machine. What the environment says already is
    kept; nothing is set where no interface has the address.
    """
    name = next((name for _, name in socket.if_nameindex() if _address(name) == address), None)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # =: this name, not a prefix


def _address(interface: str) -> str | None:
    """The IPv4 address of an interface; None if it has none, or on another system than Linux."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, ASK_FOR_ADDRESS, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return None


def _end_with_parent(link: Connection, memory: Memory, index: int) -> None:
    """Ends this process when its parent dies. Until then it records that the process is alive.

    The parent never writes to the link: that it can be read means that the parent's end is closed.
    """
    with suppress(OSError):
        while not link.poll(0.5):
            memory.alive[index] = monotonic()
    os._exit(1)
