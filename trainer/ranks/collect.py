"""Objects of all ranks, one after the other, on the rank that records."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch.distributed as dist

from trainer.ranks.groups import Gang


def collect(gang: Gang, mine: Iterable[object]) -> Iterator[Any]:
    """Yields the objects of all ranks, in order of rank, on the recording rank; else none.

    Memory holds one object at a time, where torch's `gather_object` makes all as large as the
    largest. Tensors must be on the CPU: they are restored on the device that they had at the
    sender. Every rank must make the call and exhaust what it returns. Raises PeerLost.
    """
    if not gang.records:
        for message in chain(((item,) for item in mine), [None]):
            with gang.waiting():
                dist.send_object_list([message], 0, group=gang.control)
        return
    yield from mine
    for rank in range(1, gang.num_ranks * gang.num_replicas):
        while (message := _received(gang, rank)) is not None:
            yield message[0]


def _received(gang: Gang, rank: int) -> tuple[Any] | None:
    messages: list[Any] = [None]
    with gang.waiting():
        dist.recv_object_list(messages, rank, group=gang.control)
    return messages[0]
