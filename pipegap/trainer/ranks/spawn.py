"""Starts the ranks of a gang on this machine, supervises them, and ends all of them when one
fails.
"""

import fcntl
import os
import signal
import socket
import struct
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol, TypeVar

import torch.distributed as dist

from pipegap.trainer.base.children import scratch, socket_base
from pipegap.trainer.base.cli import STOPS
from pipegap.trainer.base.errors import BadInput, GangFailed, LeaseLost, Stopped
from pipegap.trainer.ranks.groups import Heartbeat, PeerLost

# Supervises the ranks of a gang, wherever they run, and finds the one that caused a failure.

START_UP = 300.0
"""Seconds that a rank may take to import torch and to build its part, on a busy machine."""
POLL_EVERY = 0.5
"""Seconds between two looks at the ranks while none of them sends a message."""
CAUSE_TIMEOUT = 2.0
"""Seconds to wait, after the first sign of a failure, for the rank that caused it."""

AskedToStop = Callable[[], bool]
REFUSALS: tuple[type[Exception], ...] = (BadInput, LeaseLost)
"""Why a rank does not go on, which is nobody's failure: it ends the gang at once."""
NO_FAILURE: tuple[type[Exception], ...] = (*REFUSALS, Stopped)
"""Errors that a rank passes on as they are."""
T = TypeVar("T")


class Parent(NamedTuple):
    """What the parent of a gang does while it runs."""

    on_message: Callable[[Any], None]
    """Gets each message that a rank sends."""
    timeout: float
    """Seconds without any progress after which the gang has failed."""
    asked_to_stop: AskedToStop = lambda: False
    """Whether the ranks are to stop at their next drain."""


Launch = Callable[[Callable[..., None], Sequence[object], int, Parent], None]
"""(program, arguments, number of ranks, parent): starts the ranks of a gang, as `spawn.run_gang`.

It runs `program(store, heartbeat, send, *arguments)` as every rank, until all have ended. A rank
passes messages to `parent` by `send`, and learns by its heartbeat that it is asked to stop. Raises
GangFailed with the first cause if a rank fails, or if none makes progress for the parent's timeout;
BadInput, LeaseLost or Stopped if a rank raised it. No rank outlives this call, nor this process if
it is killed.
"""


class Cause(NamedTuple):
    """Why a rank failed. The smaller one is the likelier first cause: of two of the same likelihood
    the earlier one, and one that lost a peer (1) is the victim of another (0)."""

    likelihood: int
    time: float
    message: str


class Liveness(NamedTuple):
    """Seconds since a rank made progress, and since its process gave any sign of life; whether it
    waits for another rank."""

    idle: float
    silent: float
    waits: bool


class Ranks(Protocol):
    """The ranks of a gang, as their parent sees them."""

    def receive(self, timeout: float) -> Iterable[tuple[int, object]]:
        """Pairs of a rank and its message, as soon as there are any; none after `timeout` seconds.

        The last message of a rank is a Cause, an error, or None: see `exit_message`.
        """

    def liveness(self) -> Sequence[Liveness]:
        """One entry per rank."""

    def ask_to_stop(self) -> None:
        """Asks the ranks to stop at their next drain; may be called again."""


def exit_message(index: int, run: Callable[[], None]) -> Cause | Exception | None:
    """Calls `run`, which is all that rank `index` does; returns how it ended, None if well."""
    try:
        run()
    except NO_FAILURE as error:
        return error
    except PeerLost as error:
        return Cause(1, monotonic(), f"rank {index}: {error}")
    except BaseException:
        return Cause(0, monotonic(), f"rank {index} raised:\n{traceback.format_exc()}")
    return None


def is_exit_message(message: object) -> bool:
    """Whether it is the last message of a rank."""
    return message is None or isinstance(message, (Cause, *NO_FAILURE))


def supervise(ranks: Ranks, num_ranks: int, parent: Parent) -> None:
    """Passes messages on until every rank has ended; raises as `Launch` does."""
    exits: dict[int, object] = {}
    deadline = float("inf")
    while len(exits) < num_ranks and monotonic() < deadline:
        if parent.asked_to_stop():
            ranks.ask_to_stop()
        for index, message in ranks.receive(POLL_EVERY):
            if is_exit_message(message):
                exits[index] = message
            else:
                parent.on_message(message)
        if causes := _of(Cause, exits):
            # The rank that a dead peer stopped may be heard before the peer: wait for the cause.
            deadline = min(deadline, monotonic() + CAUSE_TIMEOUT)
        else:
            _require_progress(ranks.liveness(), parent.timeout)
        # A likelihood of 0 is that of the first cause itself.
        if _of(REFUSALS, exits) or (causes and min(causes).likelihood == 0):
            break
    for refused in _of(REFUSALS, exits):
        raise refused
    if causes := _of(Cause, exits):
        raise GangFailed(min(causes).message)
    for stopped in _of(Stopped, exits):  # not before all ended: one writes the checkpoint
        raise stopped


def _of(kind: type[T] | tuple[type[T], ...], exits: Mapping[int, object]) -> list[T]:
    return [message for message in exits.values() if isinstance(message, kind)]


def _require_progress(liveness: Sequence[Liveness], timeout: float) -> None:
    """Raises GangFailed if no rank made progress for `timeout` seconds.

    The message blames the ranks that do not wait for another one, and ranks that wait but whose
    process is silent.
    """
    # One rank that makes progress is enough: the others may wait for it.
    if min(rank.idle for rank in liveness) <= timeout:
        return
    stuck = [
        f"rank {index}"
        for index, rank in enumerate(liveness)
        if not rank.waits or rank.silent > timeout / 2
    ]
    if not stuck:
        raise GangFailed(f"every rank has waited for another for timeout={timeout:g} seconds")
    raise GangFailed(
        f"{' and '.join(stuck)} made no progress for timeout={timeout:g} seconds; "
        "the others wait for it"
    )


# Starts the ranks of a gang on this machine, and ends all of them when one fails.

PRELOAD = ["torch", "torch._dynamo", "pipegap.trainer.parts"]
"""What a process without threads imports once, of which every rank is then a fork. torch takes 2 s
of a core, and torch._dynamo, which its optimizers import when they are made, another 2 s. None
starts threads or CUDA when it is imported."""


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
        # Without locks: each entry has one writer. The times are in the future: a rank that starts
        # has a negative idle time until START_UP is over.
        memory = Memory(
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
            context.Array("b", [0], lock=False),
            context.Array("d", [monotonic() + START_UP] * num_ranks, lock=False),
        )
        with _started(context, program, arguments, folder / "store", memory) as ranks:
            supervise(ranks, num_ranks, parent)


def _keep_sockets_short() -> None:
    """Has multiprocessing choose now, and for good, the folder of this process's sockets."""
    # A path of a socket may have about 100 characters, and TMPDIR may be longer. `get_temp_dir`
    # keeps its first answer.
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
            rank_link.close()  # with this copy open, `recv` would not see that the rank has ended
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
    # Ctrl-C reaches the whole group. Only the parent acts by it: it asks for a stop at a drain.
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
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = 0x8915  # SIOCGIFADDR of Linux
        answer = fcntl.ioctl(any_socket, request, struct.pack("256s", interface.encode()))
        # struct ifreq: 16 bytes for the name, then family (2), port (2) and address (4).
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
