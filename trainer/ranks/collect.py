"""Objects of all ranks, one after the other, on the rank that records; and the state of the whole
model, which comes weight by weight and lies on a disk there, so that the rank's memory holds one
weight's state, however many ranks there are."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
import torch.distributed as dist

from pipegap.trainer.base.resources import on_cpu
from pipegap.trainer.ranks.groups import Gang

State = dict[str, Any]
PREFIX = ".spilled-"


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


def whole_state(gang: Gang, mine: Mapping[str, State], folder: Path) -> dict[str, State]:
    """The states of all ranks by name of weight, in a file of `folder` each, on the recording rank.

    Of a name that several ranks have, a later rank's entries replace an earlier one's. Other ranks
    get none. Every rank makes the call. Raises PeerLost.
    """
    whole: dict[str, State] = {}
    for name, state in collect(gang, ((name, on_cpu(mine[name])) for name in mine)):
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
        file.flush()
        copy: State = torch.load(file.name, map_location="cpu", mmap=True, weights_only=True)
    return copy
