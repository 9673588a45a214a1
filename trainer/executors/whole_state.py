"""The state of a gang's whole model: it comes to the recording rank weight by weight, and lies on a
disk there, so that the rank's memory holds one weight's state, however many ranks there are."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from trainer.base.resources import on_cpu
from trainer.ranks.collect import collect
from trainer.ranks.groups import Gang

State = dict[str, Any]
PREFIX = ".spilled-"


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
