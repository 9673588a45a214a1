"""Messages with the stages before and after, by a communicator for each direction of each pair."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from pipegap.trainer.executors.channel import AHEAD, own_stream

FORWARD, BACKWARD = "F", "B"
Operations = Callable[[int], list[dist.P2POp]]


def of_every_rank(value: object, group: Any = None) -> list[Any]:
    """Return the values of all ranks of a group, by rank; the whole world is the default."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def ranks_of(stage: PipelineStage) -> list[int]:
    """Return the ranks of the stage's pipeline, in the order of its stages."""
    return dist.get_process_group_ranks(stage.group or dist.group.WORLD)


def new_group(stage: PipelineStage, ranks: Sequence[int]) -> Any:
    """Return a new group of these ranks, None outside of it, with the timeout of the stage's group.
    All ranks of all pipelines must make this call, and groups of different pipelines do not
    overlap.

    Without that (`use_local_synchronization`) torch names a group by how many groups a rank has
    seen, which may differ within a pipeline: then its ranks wait for each other for ever.
    """
    groups = [list(group) for group in dict.fromkeys(of_every_rank(tuple(ranks)))]
    whole: Any = stage.group or dist.group.WORLD
    options = getattr(whole._get_backend(stage.device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return dist.new_subgroups_by_enumeration(groups, timeout=timeout)[0]


class Neighbours:
    """Sends and receives what a stage's passes name, without waiting for sends.

    Under NCCL the messages of one communicator wait for each other, whatever their direction. So
    there are four groups of all stages, for forwards and backwards between an even stage and the
    next, and between an odd one and the next: a rank uses each for one edge in one direction. Each
    edge is used once when it is made, since NCCL builds a communicator at its first use, by a call
    that waits for both ranks.
    """

    def __init__(self, stage: PipelineStage) -> None:
        self._receives: dict[str, Operations] = {}
        self._sends: dict[str, Operations] = {}
        if not stage.is_first:
            self._receives[FORWARD] = stage.get_fwd_recv_ops
            self._sends[BACKWARD] = stage.get_bwd_send_ops
        if not stage.is_last:
            self._receives[BACKWARD] = stage.get_bwd_recv_ops
            self._sends[FORWARD] = stage.get_fwd_send_ops
        self._leaving: deque[tuple[Tensor, dist.Work]] = deque()
        self._capacity = 4 * stage.num_stages
        self._stream, self.ahead = own_stream(stage.device), AHEAD[stage.device.type]
        self._groups: dict[tuple[str, int], Any] = {}
        ranks, me, message = ranks_of(stage), dist.get_rank(), torch.zeros(1, device=stage.device)
        for first, kind in product((0, 1), (FORWARD, BACKWARD)):
            group = new_group(stage, ranks)
            for edge in list(pairwise(ranks))[first::2]:
                if me in edge:
                    peer, sends = sum(edge) - me, edge[kind == BACKWARD] == me
                    self._groups[kind, peer] = group
                    call = dist.isend if sends else dist.irecv
                    self._start(kind, dist.P2POp(call, message, peer, group)).wait()

    def receive(self, kind: str, microbatch: int) -> list[dist.Work]:
        """Posts the receives of one forward or backward, `ahead` passes before it."""
        operations = self._receives[kind](microbatch) if kind in self._receives else []
        if self._stream is None:
            return [self._start(kind, op) for op in operations]
        with torch.cuda.stream(self._stream):
            works = [self._start(kind, op) for op in operations]
        # The next receives wait for the pass before this one, which had buffers.
        self._stream.wait_stream(torch.cuda.current_stream())
        return works

    def send(self, kind: str, microbatch: int) -> None:
        """Starts the sends of one forward or backward; their tensors must not change any more."""
        if kind not in self._sends:
            return
        for op in self._sends[kind](microbatch):
            op.tensor = op.tensor.detach()  # kept until it has left, which its graph need not be
            self._leaving.append((op.tensor, self._start(kind, op)))
        self.flush(self._capacity)

    def flush(self, capacity: int = 0) -> None:
        """Lets go of messages that have left, and waits until at most `capacity` have not."""
        leaving = self._leaving
        while len(leaving) > capacity or (leaving and leaving[0][1].is_completed()):
            leaving.popleft()[1].wait()

    def _start(self, kind: str, op: dist.P2POp) -> dist.Work:
        group = self._groups.get((kind, op.peer))
        if group is None:
            raise RuntimeError(f"rank {op.peer} is no neighbour: messages may not skip a stage")
        work: dist.Work = op.op(op.tensor, op.peer, group)
        return work


def wait_for(works: Sequence[dist.Work]) -> None:
    """Waits for messages, on a GPU without the host."""
    for work in works:
        work.wait()
