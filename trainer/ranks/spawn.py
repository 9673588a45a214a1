"""Starts the ranks of a gang on this machine, and ends them all when one fails."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

import torch.distributed as dist

from trainer.gang import Pulse
from trainer.watch import START_UP, AskedToStop, Cause, Vital, is_last, last_words, watch

Tell = Callable[[object], None]


class Memory(NamedTuple):
    """What all processes share: see `Pulse`, and when each rank was last awake."""

    beats: Any
    stop: Any
    awake: Any


@dataclass
class Rank:
    """One process of the gang, as its parent sees it."""

    index: int
    process: SpawnProcess
    link: Connection
    is_done: bool = False

    def hear(self) -> object:
        """One thing that it told, or why it ended."""
        try:
            told = self.link.recv()
        except (EOFError, OSError):
            self.process.join()
            told = Cause(0, monotonic(), f"rank {self.index} {_end_of(self.process.exitcode)}")
        self.is_done = is_last(told)
        return told


@dataclass(frozen=True)
class Spawned:
    """The processes of a gang."""

    ranks: Sequence[Rank]
    memory: Memory

    def told(self, patience: float) -> Iterator[tuple[int, object]]:
        """See `Ranks`."""
        running = {rank.link: rank for rank in self.ranks if not rank.is_done}
        for link in wait(list(running), patience):
            assert isinstance(link, Connection)
            yield running[link].index, running[link].hear()

    def vitals(self) -> list[Vital]:
        """See `Ranks`."""
        now = monotonic()
        return [
            Vital(now - abs(beat), now - awake, beat < 0)
            for beat, awake in zip(self.memory.beats, self.memory.awake, strict=True)
        ]

    def ask_to_stop(self) -> None:
        """See `Ranks`."""
        self.memory.stop[0] = 1


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def run_gang(
    program: Callable[..., None],
    arguments: Sequence[object],
    num_ranks: int,
    hear: Callable[[Any], None],
    timeout: float,
    asked_to_stop: AskedToStop = lambda: False,
) -> None:
    """Runs a gang on this machine: see `Launch`."""
    with TemporaryDirectory(prefix="pipegap-gang-") as folder:
        context = SpawnContext()
        memory = Memory(
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
            context.Array("b", [0], lock=False),
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
        )
        with _started(context, program, arguments, Path(folder) / "store", memory) as ranks:
            watch(ranks, num_ranks, hear, timeout, asked_to_stop)


@contextmanager
def _started(
    context: SpawnContext,
    program: Callable[..., None],
    arguments: Sequence[object],
    store: Path,
    memory: Memory,
) -> Iterator[Spawned]:
    ranks: list[Rank] = []
    try:
        for index in range(len(memory.beats)):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank_main,
                args=(program, str(store), index, memory, theirs, tuple(arguments)),
                name=f"pipegap-rank-{index}",
            )
            process.start()
            theirs.close()
            ranks.append(Rank(index, process, ours))
        yield Spawned(ranks, memory)
    finally:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            rank.process.join()
            rank.link.close()


def _rank_main(
    program: Callable[..., None],
    store: str,
    index: int,
    memory: Memory,
    link: Connection,
    arguments: tuple[object, ...],
) -> None:
    watch = threading.Thread(target=_end_with_parent, args=(link, memory, index), daemon=True)
    watch.start()
    for stop in (signal.SIGINT, signal.SIGTERM):  # of the whole group: the parent's to handle
        signal.signal(stop, signal.SIG_IGN)
    stay_on_loopback()
    meeting = dist.FileStore(store, len(memory.beats))
    pulse = Pulse(memory.beats, index, memory.stop)
    link.send(last_words(index, lambda: program(meeting, pulse, link.send, *arguments)))
    link.close()
    os._exit(0)  # not through torch's atexit handlers, which may wait for a peer that is gone


def stay_on_loopback() -> None:
    """For ranks that are all on this machine: nobody else shall connect."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def _end_with_parent(link: Connection, memory: Memory, index: int) -> None:
    """The parent never writes: its end of the link closes when it dies, however it dies."""
    with suppress(OSError):
        while not link.poll(0.5):
            memory.awake[index] = monotonic()
    os._exit(1)
