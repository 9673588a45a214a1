"""Messages between neighbouring ranks, in the order of the schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.gang import Gang
from trainer.operations import Op

AHEAD = 2
"""Receives that are posted ahead of need, so that a message travels while its reader computes."""


class Inbox:
    """What one neighbour sends, in its order. `group` carries nothing else between the two."""

    def __init__(self, gang: Gang, source: int, group: Any) -> None:
        self._gang, self._source, self._group = gang, source, group
        self._expected: deque[tuple[torch.Size, torch.dtype]] = deque()
        self._posted: deque[tuple[Tensor, dist.Work]] = deque()

    def expect(self, shape: torch.Size, dtype: torch.dtype, count: int = 1) -> None:
        """Says what the next `count` messages will be."""
        self._expected.extend([(shape, dtype)] * count)
        self._post()

    def take(self) -> Tensor:
        """The next message; waits for it."""
        buffer, work = self._posted.popleft()
        self._gang.wait(work)
        self._post()
        return buffer

    def _post(self) -> None:
        while self._expected and len(self._posted) < AHEAD:
            shape, dtype = self._expected.popleft()
            buffer = torch.empty(shape, dtype=dtype, device=self._gang.device)
            with self._gang.talking():
                work = dist.irecv(buffer, self._source, group=self._group)
            assert work is not None
            self._posted.append((buffer, work))


class Outbox:
    """What this rank sends to one neighbour, without waiting for it to be read.

    A message is kept until it has left. Gloo does not tell when that is, but the neighbour reads in
    order and can be only so far behind: older ones than the last `capacity` have left, or will
    without any further operation of this rank.
    """

    def __init__(self, gang: Gang, target: int, group: Any, capacity: int) -> None:
        self._gang, self._target, self._group = gang, target, group
        self._capacity = capacity
        self._leaving: deque[tuple[Tensor, dist.Work]] = deque()

    def send(self, message: Tensor) -> None:
        """Hands over a message; it must not be changed afterwards."""
        message = message.contiguous()
        with self._gang.talking():
            work = dist.isend(message, self._target, group=self._group)
        assert work is not None
        self._leaving.append((message, work))
        while len(self._leaving) > self._capacity:
            self._retire()

    def flush(self) -> None:
        """Waits until every message has left."""
        while self._leaving:
            self._retire()

    def _retire(self) -> None:
        _, work = self._leaving.popleft()
        self._gang.wait(work)


class Channels:
    """Both neighbours of this rank: hidden states go forward, their gradients backward.

    `message` is the shape of a microbatch's hidden states, [rows, length, width].
    """

    def __init__(
        self, gang: Gang, num_stages: int, message: torch.Size, dtype: torch.dtype
    ) -> None:
        self._gang, self._last = gang, num_stages - 1
        self._message, self._dtype = message, dtype
        capacity = 2 * num_stages
        self._inbox = {
            "F": Inbox(gang, gang.neighbour(-1), gang.forward),
            "B": Inbox(gang, gang.neighbour(1), gang.backward),
        }
        self._outbox = {
            "F": Outbox(gang, gang.neighbour(1), gang.forward, capacity),
            "B": Outbox(gang, gang.neighbour(-1), gang.backward, capacity),
        }

    def expect(self, operations: Sequence[Op]) -> None:
        """Gets ready for the messages that these operations will take."""
        for kind in ("F", "B"):
            count = sum(_reads(op, self._last) == kind for op in operations)
            self._inbox[kind].expect(self._message, self._dtype, count)

    def take(self, op: Op) -> Tensor | None:
        """What another stage made for `op`; None where there is no such stage."""
        kind = _reads(op, self._last)
        return self._inbox[kind].take() if kind else None

    def send(self, op: Op, message: Tensor) -> None:
        """Hands on what `op` made, if there is a stage to read it."""
        kind = _writes(op, self._last)
        if kind:
            self._outbox[kind].send(message)

    def take_hidden(self, tokens: torch.Size, dtype: torch.dtype) -> Tensor:
        """Hidden states of that many tokens, [rows, length] (evaluation)."""
        self._inbox["F"].expect(torch.Size([*tokens, self._message[-1]]), dtype)
        return self._inbox["F"].take()

    def send_on(self, hidden: Tensor) -> None:
        """Hands hidden states to the next stage (evaluation)."""
        self._outbox["F"].send(hidden)

    def flush(self) -> None:
        """Waits until everything has left."""
        for outbox in self._outbox.values():
            outbox.flush()

    def go_through_the_motions(self, operations: Sequence[Op]) -> None:
        """Takes and sends all messages of these operations, empty ones, and computes nothing."""
        empty = torch.zeros(self._message, dtype=self._dtype, device=self._gang.device)
        for op in operations:
            self.take(op)
            self.send(op, empty)
        self.flush()


def _reads(op: Op, last: int) -> str:
    """Which kind of message `op` needs of another stage, if any."""
    if op.kind == "F":
        return "F" if op.stage > 0 else ""
    return "B" if op.kind in "BI" and op.stage < last else ""


def _writes(op: Op, last: int) -> str:
    """Which kind of message `op` makes for another stage, if any."""
    if op.kind == "F":
        return "F" if op.stage < last else ""
    return "B" if op.kind in "BI" and op.stage > 0 else ""
