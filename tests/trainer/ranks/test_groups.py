"""How a process leaves its gang, and on which interface ranks listen."""

import socket
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from pipegap.trainer.base.errors import Stopped
from pipegap.trainer.ranks.groups import Heartbeat, PeerLost, joined
from pipegap.trainer.ranks.spawn import listen_on


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


NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for addresses"),
    pytest.mark.skipif("lo" not in dict(map(reversed, socket.if_nameindex())), reason="no lo here"),
]


@pytest.mark.parametrize(
    ("address", "expected"), [("127.0.0.1", ["lo", "=lo"]), ("192.0.2.1", [None, None])]
)
def test_the_interface_that_has_the_address(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: list[str | None]
) -> None:
    """192.0.2.1 is an address that no machine has (RFC 5737)."""
    assert told(monkeypatch, address) == expected


def test_what_the_environment_says_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "127.0.0.1", GLOO_SOCKET_IFNAME="mine") == ["mine", "=lo"]


def told(monkeypatch: pytest.MonkeyPatch, address: str, **given: str) -> list[str | None]:
    """What the environment says afterwards, with `given` before."""
    environment = dict(given)
    monkeypatch.setattr("os.environ", environment)
    listen_on(address)
    return [environment.get(name) for name in NAMES]
