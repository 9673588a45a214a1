"""The processes of one trial, p ranks per replica, which live and die together.

What they collect on the rank that records comes object by object, the state of the whole model
weight by weight. It lies on a disk there, so that the rank's memory holds one weight's state,
however many ranks there are.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.base.resources import on_cpu


class PeerLost(RuntimeError):
    """Another rank, which is the cause, did not answer: it died, raised or hangs."""


@dataclass
class Heartbeat:
    """By this a rank shows its supervisor that it makes progress, and learns that it shall stop.

    `beats[rank]` is the time (`time.monotonic`) of its last progress, negative while the rank waits
    for another one. `stop[0]` is not 0 once the rank shall stop. The supervisor shares both arrays.
    """

    beats: MutableSequence[float]
    rank: int
    stop: MutableSequence[int]

    def asked_to_stop(self) -> bool:
        """Whether the trial shall stop when it can."""
        return bool(self.stop[0])

    def beat(self, *, waiting: bool = False) -> None:
        """Records that the rank made progress and, if `waiting`, now waits for another rank."""
        # One number, so that time and sign change at once for the process that reads them.
        self.beats[self.rank] = -monotonic() if waiting else monotonic()


class Edge(NamedTuple):
    """Messages of one kind from one place in the pipeline to another.

    Each edge has a group of its own, which carries messages in one direction only. Under NCCL the
    two ranks of a group share one queue, in which a receive that is posted early would hold up
    every send behind it.
    """

    kind: str
    source: int
    target: int


@dataclass
class Gang:
    """This rank and its process groups. Rank = replica · p + place in the pipeline.

    Reductions over the pipeline, over tied weights and over replicas have groups of their own, so
    that none queues behind another. `control` carries Python objects, on the CPU.

    Every group is used once when it is made. NCCL builds the communicator of a group, or of a pair
    of ranks, at its first use, and that call blocks each rank until all of them have made it: left
    to the schedule, in which neighbours begin with different messages, it deadlocks.
    """

    rank: int
    num_ranks: int
    num_replicas: int
    device: torch.device
    heartbeat: Heartbeat
    timeout: timedelta
    pipeline: Any = field(init=False)
    tied: Any = field(init=False)
    replicas: Any = field(init=False)
    control: Any = field(init=False)

    def __post_init__(self) -> None:
        p = self.num_ranks
        # Every rank makes every group, also those that it is not in, and all in this order: torch
        # requires it of `new_group`.
        self.control = self._group(range(p * self.num_replicas), backend="gloo")
        for replica in range(self.num_replicas):
            members = [replica * p + place for place in range(p)]
            pipeline = self._group(members)
            tied = self._group([members[0], members[-1]]) if p > 1 else None
            if replica == self.replica:
                self.pipeline, self.tied = pipeline, tied
        for place in range(p):
            group = self._group([replica * p + place for replica in range(self.num_replicas)])
            if place == self.place:
                self.replicas = group
        self._use_once()

    def _group(self, members: Iterable[int], backend: str | None = None) -> Any:
        return dist.new_group([*members], timeout=self.timeout, backend=backend)

    def _use_once(self) -> None:
        groups = [self.pipeline, self.replicas]
        groups += [self.tied] if self.place in {0, self.num_ranks - 1} and self.tied else []
        for group in groups:
            self.wait(self.all_reduce(torch.zeros(1, device=self.device), group))

    def connect(self, edges: Sequence[Edge]) -> dict[Edge, Any]:
        """The groups of the pipeline's `edges` that begin or end at this place.

        Every rank of the gang makes this call, with the same edges. Raises PeerLost.
        """
        # Those of other replicas too, as `new_group` is called by every rank.
        groups: dict[Edge, Any] = {}
        for replica in range(self.num_replicas):
            for edge in edges:
                ends = self.at(edge.source, replica), self.at(edge.target, replica)
                group = self._edge(*ends)
                if self.rank in ends:
                    groups[edge] = group
        return groups

    def _edge(self, source: int, target: int) -> Any:
        """The group of two ranks, used once."""
        group, message = self._group([source, target]), torch.zeros(1, device=self.device)
        work = None
        with self.raising_peer_lost():
            if self.rank == source:
                work = dist.isend(message, target, group=group)
            elif self.rank == target:
                work = dist.irecv(message, source, group=group)
        if work is not None:
            self.wait(work)
        return group

    @property
    def place(self) -> int:
        """Place of this rank in its pipeline, 0 … p − 1."""
        return self.rank % self.num_ranks

    @property
    def replica(self) -> int:
        """Which data-parallel replica this rank belongs to."""
        return self.rank // self.num_ranks

    @property
    def records(self) -> bool:
        """Whether this rank writes the trial's record: rank 0 does."""
        return self.rank == 0

    def at(self, place: int, replica: int | None = None) -> int:
        """The rank at a place of a replica's pipeline, by default of this rank's own."""
        return (self.replica if replica is None else replica) * self.num_ranks + place

    @contextmanager
    def raising_peer_lost(self) -> Iterator[None]:
        """Raises PeerLost in place of the RuntimeError that torch raises if a peer is gone."""
        try:
            yield
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank} lost another rank: {error}") from error

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The rank waits for another one while the context lasts. Raises PeerLost."""
        self.heartbeat.beat(waiting=True)
        with self.raising_peer_lost():
            yield
        self.heartbeat.beat()

    def wait(self, work: dist.Work) -> None:
        """Waits for a transfer or an all-reduce that was launched. Raises PeerLost."""
        with self.waiting():
            work.wait()

    def all_reduce(self, tensor: Tensor, group: Any) -> dist.Work:
        """Launches the all-reduce (sum) of `tensor` over a group, in place."""
        with self.raising_peer_lost():
            work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return work

    def all_gather(self, item: object) -> list[Any]:
        """The objects of all ranks, in order of rank, on every rank."""
        everything: list[Any] = [None] * (self.num_ranks * self.num_replicas)
        with self.waiting():
            dist.all_gather_object(everything, item, group=self.control)
        return everything

    def barrier(self) -> None:
        """Waits until every rank has come here. Raises PeerLost."""
        self.all_gather(None)


@contextmanager
def joined(
    store: dist.Store | None,
    rank: int,
    num_ranks: int,
    num_replicas: int,
    device: torch.device,
    heartbeat: Heartbeat,
    timeout: float,
) -> Iterator[Gang]:
    """Makes this process a rank of a gang while the context lasts.

    Without a `store`, the environment that torchrun sets says where the ranks meet. A peer that
    does not answer for `timeout` seconds counts as lost. After an error the groups are left to the
    end of the process: to destroy one of NCCL waits for what is in flight, with a peer that may be
    gone.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    world = num_ranks * num_replicas
    options: dict[str, Any] = {} if store is None else {"store": store}
    limit = timedelta(seconds=timeout)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL and new streams use the current device
    dist.init_process_group(backend, rank=rank, world_size=world, timeout=limit, **options)
    try:
        yield Gang(rank, num_ranks, num_replicas, device, heartbeat, limit)
    except Stopped:  # by which all ranks end together, after a drain
        dist.destroy_process_group()
        raise
    dist.destroy_process_group()


State = dict[str, Any]
PREFIX = ".spilled-"


def collect(gang: Gang, items: Iterable[object]) -> Iterator[Any]:
    """Yields the objects of all ranks, in order of rank, on the recording rank; else none.

    Memory holds one object at a time, where torch's `gather_object` makes all as large as the
    largest. Tensors must be on the CPU: they are restored on the device that they had at the
    sender. Every rank must make the call and exhaust what it returns. Raises PeerLost.
    """
    if not gang.records:
        # In a tuple each, so that an item may be None, and None ends them.
        for message in chain(((item,) for item in items), [None]):
            with gang.waiting():
                dist.send_object_list([message], 0, group=gang.control)
        return
    yield from items  # rank 0's own, which no message carries
    for rank in range(1, gang.num_ranks * gang.num_replicas):
        while (message := _received(gang, rank)) is not None:
            yield message[0]


def _received(gang: Gang, rank: int) -> tuple[Any] | None:
    messages: list[Any] = [None]
    with gang.waiting():
        dist.recv_object_list(messages, rank, group=gang.control)
    return messages[0]


def whole_state(gang: Gang, states: Mapping[str, State], folder: Path) -> dict[str, State]:
    """The states of all ranks by name of weight, in a file of `folder` each, on the recording rank.

    Of a name that several ranks have, a later rank's entries replace an earlier one's. Other ranks
    get none. Every rank makes the call. Raises PeerLost.
    """
    whole: dict[str, State] = {}
    for name, state in collect(gang, ((name, on_cpu(states[name])) for name in states)):
        whole[name] = {**whole.get(name, {}), **_spilled(state, folder)}
    return whole


def _spilled(state: State, folder: Path) -> State:
    """A copy whose tensors are read from a file when they are used.

    The file has no name any more when this returns, and is gone with the tensors. The system drops
    its pages when memory is short, and reads them again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=folder, prefix=PREFIX) as file:
        torch.save(state, file)
        file.flush()  # `load` opens the file by its name
        copy: State = torch.load(file.name, map_location="cpu", mmap=True, weights_only=True)
    return copy
