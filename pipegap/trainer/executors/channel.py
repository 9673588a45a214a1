"""Messages between the stages of different ranks, in the order of the schedule."""

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipegap.trainer.ranks.groups import Edge, Gang
from pipegap.trainer.schedules.operations import Op, Schedule

POSTED_EARLY = {"cpu": 2, "cuda": 0}
"""Type of device → receives that are posted before those that their reader waits for.

On a CPU messages arrive while their reader computes, and one whose receive is there leaves at once,
where gloo would ask for it first. On a GPU a receive is a kernel that runs until its message is
there, and to load another kernel, at its first launch, CUDA waits for those that run: posted early,
a receive may wait for what then is never launched. There the stream on which it is posted
(`own_stream`) does not wait for what was launched, so that messages arrive meanwhile too.
"""


def own_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream beside that of the computation on a GPU; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    """A context whose kernels go to the stream; None, at no cost on a CPU, leaves them as they are.

    For None `torch.cuda.stream` looks for devices, which takes 6 µs of every message.
    """
    return nullcontext() if stream is None else torch.cuda.stream(stream)


class Inbox:
    """The messages of one neighbour, in the order in which it sends them.

    `group` carries no other messages between the two ranks. Receives are posted on `stream`, on a
    CPU up to POSTED_EARLY of them early.
    """

    def __init__(
        self, gang: Gang, source: int, group: Any, stream: torch.cuda.Stream | None
    ) -> None:
        self._gang, self._source, self._group = gang, source, group
        self._stream, self._ahead = stream, POSTED_EARLY[gang.device.type]
        self._expected: deque[tuple[torch.Size, torch.dtype]] = deque()
        self._posted: deque[tuple[Tensor, dist.Work]] = deque()

    def expect(self, shape: torch.Size, dtype: torch.dtype, count: int = 1) -> None:
        """Announces shape and dtype of the next `count` messages."""
        self._expected.extend([(shape, dtype)] * count)
        self._post(self._ahead)

    def take(self) -> Tensor:
        """Waits for the next message and returns it."""
        self._post(1)
        buffer, work = self._posted.popleft()
        self._gang.wait(work)
        if self._stream:
            # The buffer is of the other stream's memory, which must not be reused while this stream
            # still reads it.
            buffer.record_stream(torch.cuda.current_stream())
        self._post(self._ahead)
        return buffer

    def _post(self, number: int) -> None:
        while self._expected and len(self._posted) < number:
            shape, dtype = self._expected.popleft()
            with on_stream(self._stream), self._gang.raising_peer_lost():
                buffer = torch.empty(shape, dtype=dtype, device=self._gang.device)
                work = dist.irecv(buffer, self._source, group=self._group)
            assert work is not None
            self._posted.append((buffer, work))


class Outbox:
    """Sends messages to one neighbour without waiting for it to read them.

    A message is kept until it has left. Gloo does not report when that is. But the neighbour reads
    in order and can only be so far behind, so all but the last `capacity` messages have left, or
    will leave without any further operation of this rank.
    """

    def __init__(self, gang: Gang, target: int, group: Any, capacity: int) -> None:
        self._gang, self._target, self._group = gang, target, group
        self._capacity = capacity
        self._leaving: deque[tuple[Tensor, dist.Work]] = deque()

    def send(self, message: Tensor) -> None:
        """Starts to send a message, which must not be changed afterwards."""
        message = message.contiguous()
        with self._gang.raising_peer_lost():
            work = dist.isend(message, self._target, group=self._group)
        assert work is not None
        self._leaving.append((message, work))
        while len(self._leaving) > self._capacity:
            self._retire()  # does not wait long: see the class

    def flush(self) -> None:
        """Waits until every message has left."""
        while self._leaving:
            self._retire()

    def _retire(self) -> None:
        _, work = self._leaving.popleft()
        self._gang.wait(work)


class SameRank:
    """Messages between two stages of this rank: inbox and outbox in one."""

    def __init__(self) -> None:
        self._kept: deque[Tensor] = deque()

    def expect(self, shape: torch.Size, dtype: torch.dtype, count: int = 1) -> None:
        """Does nothing: no receive has to be posted."""

    def take(self) -> Tensor:
        """Returns the next message, which is there: the operation that made it came before."""
        return self._kept.popleft()

    def send(self, message: Tensor) -> None:
        """Keeps a message, which must not be changed afterwards."""
        self._kept.append(message)

    def flush(self) -> None:
        """Does nothing: no message leaves this rank."""


class Channels:
    """The ways of this rank's stages to the stages before and after them.

    Hidden states go forward, their gradients backward. `message` is the shape of a microbatch's
    hidden states, [rows, length, width].
    """

    def __init__(
        self, gang: Gang, schedule: Schedule, message: torch.Size, dtype: torch.dtype
    ) -> None:
        self._gang, self._ranks = gang, schedule.ranks
        self._message, self._dtype = message, dtype
        capacity = 2 * schedule.num_stages
        groups = gang.connect([edge for edge in self._edges() if edge.source != edge.target])
        within = {edge: SameRank() for edge in self._edges() if edge.source == edge.target}
        self._inbox: dict[Edge, Inbox | SameRank] = {**within}
        self._outbox: dict[Edge, Outbox | SameRank] = {**within}
        stream = own_stream(gang.device)
        for edge, group in groups.items():
            if edge.target == gang.place:
                self._inbox[edge] = Inbox(gang, gang.at(edge.source), group, stream)
            else:
                self._outbox[edge] = Outbox(gang, gang.at(edge.target), group, capacity)

    def _edges(self) -> list[Edge]:
        """Every edge of the pipeline once, in the order of its stages.

        The order is the same on every rank, as `Gang.connect` requires.
        """
        later = range(1, len(self._ranks))
        ways = ((self._way("F", s - 1, s), self._way("B", s, s - 1)) for s in later)
        # Without duplicates: if a rank has several stages, pairs of stages may share an edge.
        return [*dict.fromkeys(edge for pair in ways for edge in pair)]

    def _way(self, kind: str, source: int, target: int) -> Edge:
        """The edge of messages between two stages."""
        return Edge(kind, self._ranks[source], self._ranks[target])

    def _reads(self, op: Op) -> Edge | None:
        """The edge whose next message `op` needs; None if it needs nothing of another stage."""
        if op.kind == "F" and op.stage > 0:
            return self._way("F", op.stage - 1, op.stage)
        # Of a backward in halves, the input half I takes and sends the message, and W none.
        if op.kind in "BI" and op.stage < len(self._ranks) - 1:
            return self._way("B", op.stage + 1, op.stage)
        return None

    def _writes(self, op: Op) -> Edge | None:
        """The edge by which another stage gets what `op` makes; None if no stage needs it."""
        if op.kind == "F" and op.stage < len(self._ranks) - 1:
            return self._way("F", op.stage, op.stage + 1)
        if op.kind in "BI" and op.stage > 0:
            return self._way("B", op.stage, op.stage - 1)
        return None

    def expect(self, operations: Sequence[Op]) -> None:
        """Announces to the inboxes the messages that these operations will take."""
        counts = Counter(map(self._reads, operations))
        for edge, inbox in self._inbox.items():
            inbox.expect(self._message, self._dtype, counts[edge])

    def take(self, op: Op) -> Tensor | None:
        """What another stage made for `op`; None if `op` needs nothing of another stage."""
        edge = self._reads(op)
        return None if edge is None else self._inbox[edge].take()

    def send(self, op: Op, message: Tensor) -> None:
        """Sends what `op` made to the stage that reads it, if there is one."""
        edge = self._writes(op)
        if edge is not None:
            self._outbox[edge].send(message)

    def take_hidden(self, stage: int, tokens: torch.Size, dtype: torch.dtype) -> Tensor:
        """Waits for the hidden states that `stage` reads, of tokens of shape `tokens`, [rows,
        length] (evaluation)."""
        inbox = self._inbox[self._way("F", stage - 1, stage)]
        # Its dtype and its number of rows may be others than in training.
        inbox.expect(torch.Size([*tokens, self._message[-1]]), dtype)
        return inbox.take()

    def send_on(self, stage: int, hidden: Tensor) -> None:
        """Sends the hidden states of `stage` to the next one (evaluation)."""
        self._outbox[self._way("F", stage, stage + 1)].send(hidden)

    def flush(self) -> None:
        """Waits until every message of this rank has left."""
        for outbox in self._outbox.values():
            outbox.flush()

    def exchange_empty(self, operations: Sequence[Op]) -> None:
        """Takes all messages of these operations and sends zeros; computes nothing."""
        empty = torch.zeros(self._message, dtype=self._dtype, device=self._gang.device)
        for op in operations:
            self.take(op)
            self.send(op, empty)
        self.flush()
