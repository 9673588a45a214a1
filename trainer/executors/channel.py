"""Messages between neighbouring ranks, in the order of the schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.ranks.groups import Gang
from trainer.schedules.operations import Op

AHEAD = 2
"""Receives that are posted early, so that messages arrive while their reader still computes."""


class Inbox:
    """The messages of one neighbour, in the order in which it sends them.

    `group` carries no other messages between the two ranks.
    """

    def __init__(self, gang: Gang, source: int, group: Any) -> None:
        self._gang, self._source, self._group = gang, source, group
        self._expected: deque[tuple[torch.Size, torch.dtype]] = deque()
        self._posted: deque[tuple[Tensor, dist.Work]] = deque()

    def expect(self, shape: torch.Size, dtype: torch.dtype, count: int = 1) -> None:
        """Announces shape and dtype of the next `count` messages."""
        self._expected.extend([(shape, dtype)] * count)
        self._post()

    def take(self) -> Tensor:
        """Waits for the next message and returns it."""
        buffer, work = self._posted.popleft()
        self._gang.wait(work)
        self._post()
        return buffer

    def _post(self) -> None:
        while self._expected and len(self._posted) < AHEAD:
            shape, dtype = self._expected.popleft()
            buffer = torch.empty(shape, dtype=dtype, device=self._gang.device)
            with self._gang.raising_peer_lost():
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
        edges = gang.connect(is_ring=num_stages > gang.num_ranks)
        self._inbox = {
            "F": Inbox(gang, gang.neighbour(-1), edges.forward_in),
            "B": Inbox(gang, gang.neighbour(1), edges.backward_in),
        }
        self._outbox = {
            "F": Outbox(gang, gang.neighbour(1), edges.forward_out, capacity),
            "B": Outbox(gang, gang.neighbour(-1), edges.backward_out, capacity),
        }

    def expect(self, operations: Sequence[Op]) -> None:
        """Announces to both inboxes the messages that these operations will take."""
        for kind in ("F", "B"):
            count = sum(_reads(op, self._last) == kind for op in operations)
            self._inbox[kind].expect(self._message, self._dtype, count)

    def take(self, op: Op) -> Tensor | None:
        """What another stage made for `op`; None if `op` needs nothing of another stage."""
        kind = _reads(op, self._last)
        return self._inbox[kind].take() if kind else None

    def send(self, op: Op, message: Tensor) -> None:
        """Sends what `op` made to the stage that reads it, if there is one."""
        kind = _writes(op, self._last)
        if kind:
            self._outbox[kind].send(message)

    def take_hidden(self, tokens: torch.Size, dtype: torch.dtype) -> Tensor:
        """Waits for hidden states of tokens of shape `tokens`, [rows, length] (evaluation)."""
        self._inbox["F"].expect(torch.Size([*tokens, self._message[-1]]), dtype)
        return self._inbox["F"].take()

    def send_on(self, hidden: Tensor) -> None:
        """Sends hidden states to the next stage (evaluation)."""
        self._outbox["F"].send(hidden)

    def flush(self) -> None:
        """Waits until every message to both neighbours has left."""
        for outbox in self._outbox.values():
            outbox.flush()

    def exchange_empty(self, operations: Sequence[Op]) -> None:
        """Takes all messages of these operations and sends zeros; computes nothing."""
        empty = torch.zeros(self._message, dtype=self._dtype, device=self._gang.device)
        for op in operations:
            self.take(op)
            self.send(op, empty)
        self.flush()


def _reads(op: Op, last: int) -> str:
    """The kind of message, "F" or "B", that `op` needs of another stage; "" if it needs none."""
    if op.kind == "F":
        return "F" if op.stage > 0 else ""
    return "B" if op.kind in "BI" and op.stage < last else ""


def _writes(op: Op, last: int) -> str:
    """The kind of message, "F" or "B", that `op` makes for another stage; "" if it makes none."""
    if op.kind == "F":
        return "F" if op.stage < last else ""
    return "B" if op.kind in "BI" and op.stage > 0 else ""
