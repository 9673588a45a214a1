"""The processes of one trial: p ranks a replica, that live and die together."""

from __future__ import annotations

from collections.abc import Iterator, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class PeerLost(RuntimeError):
    """Another rank did not answer: it died, raised or hangs, and is the cause; this rank is not."""


@dataclass
class Pulse:
    """What a rank tells those who watch it: when it last got on, and whether it waits for another.

    `beats[rank]` is a time of `time.monotonic`, negative while the rank waits. `stop[0]` is what
    they tell it: not 0 once it shall stop. All are seen by whoever watches.
    """

    beats: MutableSequence[float]
    rank: int
    stop: MutableSequence[int]

    def asked_to_stop(self) -> bool:
        """Whether the trial shall stop when it can."""
        return bool(self.stop[0])

    def works(self) -> None:
        """The rank got on."""
        self.beats[self.rank] = monotonic()

    def waits(self) -> None:
        """The rank waits for another from now on."""
        self.beats[self.rank] = -monotonic()


@dataclass
class Gang:
    """This rank and its groups. Rank = replica · p + place in the pipeline.

    Activations, gradients and reductions travel in groups of their own, so that none waits behind
    another. `control` is for objects, on the CPU.
    """

    rank: int
    num_ranks: int
    num_replicas: int
    device: torch.device
    pulse: Pulse
    forward: Any = field(init=False)
    backward: Any = field(init=False)
    pipeline: Any = field(init=False)
    tied: Any = field(init=False)
    replicas: Any = field(init=False)
    control: Any = field(init=False)

    def __post_init__(self) -> None:
        p = self.num_ranks
        self.control = dist.new_group(backend="gloo")
        for replica in range(self.num_replicas):
            members = [replica * p + place for place in range(p)]
            groups = [dist.new_group(members) for _ in range(3)]
            tied = dist.new_group([members[0], members[-1]]) if p > 1 else None
            if replica == self.replica:
                self.forward, self.backward, self.pipeline = groups
                self.tied = tied
        for place in range(p):
            group = dist.new_group([replica * p + place for replica in range(self.num_replicas)])
            if place == self.place:
                self.replicas = group

    @property
    def place(self) -> int:
        """Of this rank in its pipeline."""
        return self.rank % self.num_ranks

    @property
    def replica(self) -> int:
        """Which data-parallel replica this rank belongs to."""
        return self.rank // self.num_ranks

    @property
    def records(self) -> bool:
        """Whether this rank writes the trial's record: one does."""
        return self.rank == 0

    def neighbour(self, step: int) -> int:
        """Rank of the next (1) or previous (−1) place, the first one being next to the last."""
        return self.replica * self.num_ranks + (self.place + step) % self.num_ranks

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Turns what torch raises where a peer is gone into PeerLost."""
        try:
            yield
        except RuntimeError as error:
            raise PeerLost(f"rank {self.rank} lost another rank: {error}") from error

    def wait(self, work: dist.Work) -> None:
        """Waits for a transfer or a sum that was launched. Raises PeerLost."""
        self.pulse.waits()
        with self.talking():
            work.wait()
        self.pulse.works()

    def add(self, tensor: Tensor, group: Any) -> dist.Work:
        """Launches the sum of `tensor` over a group, in place."""
        with self.talking():
            work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        return work

    def gather(self, mine: object) -> list[Any]:
        """What every rank hands in, by rank; on the recording rank only, empty on others."""
        everything: list[Any] | None = None
        if self.records:
            everything = [None] * (self.num_ranks * self.num_replicas)
        self.pulse.waits()
        with self.talking():
            dist.gather_object(mine, everything, dst=0, group=self.control)
        self.pulse.works()
        return everything or []

    def share(self, mine: object) -> list[Any]:
        """What every rank hands in, by rank, on all of them."""
        everything: list[Any] = [None] * (self.num_ranks * self.num_replicas)
        self.pulse.waits()
        with self.talking():
            dist.all_gather_object(everything, mine, group=self.control)
        self.pulse.works()
        return everything


@contextmanager
def joined(
    store: dist.Store | None,
    rank: int,
    num_ranks: int,
    num_replicas: int,
    device: torch.device,
    pulse: Pulse,
    timeout: float,
) -> Iterator[Gang]:
    """Makes this process a rank. Without a `store`, torchrun's environment says where to meet.

    A peer that does not answer for `timeout` seconds counts as lost.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    world = num_ranks * num_replicas
    options: dict[str, Any] = {} if store is None else {"store": store}
    dist.init_process_group(
        backend, rank=rank, world_size=world, timeout=timedelta(seconds=timeout), **options
    )
    try:
        yield Gang(rank, num_ranks, num_replicas, device, pulse)
    finally:
        dist.destroy_process_group()
