"""Starts the ranks of a gang on this machine, watches them, and ends them all when one fails."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple

from trainer.errors import BadInput, GangFailed
from trainer.gang import PeerLost, Pulse

START_UP = 300.0
"""Seconds that a rank may take to import torch and to build its part, on a busy machine."""

PATIENCE = 2.0
"""Seconds to wait, after the first sign of a failure, for the one that caused it."""

Tell = Callable[[object], None]


class Cause(NamedTuple):
    """Why a rank ended, the likelier first cause first: those that lost a peer are its victims."""

    likelihood: int
    time: float
    message: str


class Vitals(NamedTuple):
    """By rank, in memory that all processes share: see `Pulse`, and when it was last awake."""

    beats: Any
    awake: Any


@dataclass
class Rank:
    """One process of the gang, as its parent sees it."""

    index: int
    process: SpawnProcess
    link: Connection
    is_done: bool = False


def run_gang(
    program: Callable[..., None],
    arguments: Sequence[object],
    num_ranks: int,
    hear: Callable[[Any], None],
    timeout: float,
) -> None:
    """Runs `program(store_path, pulse, tell, *arguments)` as every rank, to the end of all.

    `hear` is handed what a rank tells. Raises GangFailed with the first cause if one fails, or if
    none gets on for `timeout` seconds; BadInput if a rank raised it. No rank is left behind, nor
    when this process is killed.
    """
    with TemporaryDirectory(prefix="pipegap-gang-") as folder:
        context = SpawnContext()
        vitals = Vitals(
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
        )
        with _started(context, program, arguments, Path(folder) / "store", vitals) as ranks:
            _watch(ranks, hear, vitals, timeout)


@contextmanager
def _started(
    context: SpawnContext,
    program: Callable[..., None],
    arguments: Sequence[object],
    store: Path,
    vitals: Vitals,
) -> Iterator[list[Rank]]:
    ranks: list[Rank] = []
    try:
        for index in range(len(vitals.beats)):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_rank_main,
                args=(program, str(store), index, vitals, theirs, tuple(arguments)),
                name=f"pipegap-rank-{index}",
            )
            process.start()
            theirs.close()
            ranks.append(Rank(index, process, ours))
        yield ranks
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
    vitals: Vitals,
    link: Connection,
    arguments: tuple[object, ...],
) -> None:
    watch = threading.Thread(target=_end_with_parent, args=(link, vitals, index), daemon=True)
    watch.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        program(store, Pulse(vitals.beats, index), link.send, *arguments)
    except BadInput as error:
        link.send(error)
    except PeerLost as error:
        link.send(Cause(1, monotonic(), f"rank {index}: {error}"))
    except BaseException:
        message = f"rank {index} raised:\n{traceback.format_exc()}"
        link.send(Cause(0, monotonic(), message))
    else:
        link.send(None)
    link.close()
    os._exit(0)  # not through torch's atexit handlers, which may wait for a peer that is gone


def _end_with_parent(link: Connection, vitals: Vitals, index: int) -> None:
    """The parent never writes: its end of the link closes when it dies, however it dies."""
    with suppress(OSError):
        while not link.poll(0.5):
            vitals.awake[index] = monotonic()
    os._exit(1)


def _watch(
    ranks: Sequence[Rank], hear: Callable[[Any], None], vitals: Vitals, timeout: float
) -> None:
    causes: list[Cause] = []
    deadline = float("inf")
    while not all(rank.is_done for rank in ranks):
        running = {rank.link: rank for rank in ranks if not rank.is_done}
        for link in wait(list(running), timeout=0.5):
            assert isinstance(link, Connection)
            cause = _listen(running[link], hear)
            if cause is not None:
                causes.append(cause)
        last_beat = max(map(abs, vitals.beats))
        if not causes and monotonic() - last_beat > timeout:
            raise GangFailed(_hung(vitals, timeout))
        if causes:
            deadline = min(deadline, monotonic() + PATIENCE)
        if monotonic() > deadline or (causes and min(causes).likelihood == 0):
            break
    if causes:
        raise GangFailed(min(causes).message)


def _listen(rank: Rank, hear: Callable[[Any], None]) -> Cause | None:
    """Hears one thing of a rank; says why it ended if it failed."""
    try:
        told = rank.link.recv()
    except (EOFError, OSError):
        rank.is_done = True
        rank.process.join()
        return Cause(0, monotonic(), f"rank {rank.index} {_end_of(rank.process.exitcode)}")
    if isinstance(told, BadInput):
        raise told
    if told is None or isinstance(told, Cause):
        rank.is_done = True
        return told
    hear(told)
    return None


def _end_of(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _hung(vitals: Vitals, timeout: float) -> str:
    """To blame are those that do not wait for another rank, or do not even do that."""
    asleep = monotonic() - timeout / 2
    stuck = [
        f"rank {rank}"
        for rank, (beat, awake) in enumerate(zip(vitals.beats, vitals.awake, strict=True))
        if beat > 0 or awake < asleep
    ]
    if not stuck:
        return f"every rank waits for another since more than timeout={timeout:g} seconds"
    return (
        f"{' and '.join(stuck)} made no progress for timeout={timeout:g} seconds; "
        "the others wait for it"
    )
