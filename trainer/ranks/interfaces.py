"""The network interface by which the ranks of a gang on several machines reach each other."""

import fcntl
import os
import socket
import struct
from contextlib import suppress

ASK_FOR_ADDRESS = 0x8915
"""Linux's SIOCGIFADDR: the IPv4 address of an interface."""


def listen_on(address: str) -> None:
    """Makes gloo and NCCL listen on the interface that has this IPv4 address.

    Left alone, gloo listens where the host's own name resolves to, which is often 127.0.1.1, and
    NCCL on an interface that may lead to no other machine. What the environment says already is
    kept; nothing is set where no interface has the address.
    """
    name = next((name for _, name in socket.if_nameindex() if _address(name) == address), None)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # =: this name, not a prefix


def _address(interface: str) -> str | None:
    """The IPv4 address of an interface; None if it has none, or on another system than Linux."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, ASK_FOR_ADDRESS, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])
    return None
