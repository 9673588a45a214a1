"""How a process leaves its gang."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.ranks.groups import Heartbeat, PeerLost, joined


def leave(error: Exception | None) -> bool:
    """Leaves a gang of one rank by `error`; returns whether its groups are still there."""
    beat = Heartbeat([0.0], 0, [0])
    with joined(dist.HashStore(), 0, 1, 1, torch.device("cpu"), beat, 10):
        if error is not None:
            raise error
    return dist.is_initialized()


@pytest.fixture(autouse=True)
def no_groups_afterwards() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_an_orderly_end_destroys_the_groups() -> None:
    assert not leave(None)
    with pytest.raises(Stopped):
        leave(Stopped(3))
    assert not dist.is_initialized()


def test_an_error_does_not_wait_for_a_peer_that_is_gone() -> None:
    """To destroy a group of NCCL would."""
    with pytest.raises(PeerLost):
        leave(PeerLost("gone"))
    assert dist.is_initialized()
