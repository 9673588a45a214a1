"""Ranks listen on the interface of their node's address."""

import socket
import sys

import pytest

from pipegap.trainer.ranks.spawn import listen_on

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
