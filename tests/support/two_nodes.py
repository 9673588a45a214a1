"""Two nodes of a Ray cluster on this machine, each in a network of its own, as on two machines.

Their processes share files and memory alone: the nodes reach each other by one cable, whose ends
have other names, and the host's own name leads each to its loopback.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from shutil import which

import pytest

from tests.support.ray_head import BIN, TOKEN, ended_by_mark, marked

ADDRESSES, PORT = {"pipea": "10.201.77.1", "pipeb": "10.201.77.2"}, 6379
"""Interface of a node → its address; the port of the head, the first node."""
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
JOINED = """
import os, time
import ray
ray.init(os.environ["RAY_ADDRESS"], logging_level="ERROR")
while ray.cluster_resources().get("CPU", 0) < {num_cpus}:
    time.sleep(0.2)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def two_nodes(num_cpus: int) -> Iterator[Run]:
    """Yields a function that runs Python with its arguments on the first node, once both nodes have
    joined with `num_cpus` each. Skips the test where networks cannot be made; leaves nothing.
    """
    with ExitStack() as stack:
        # Short: sockets lie in it.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-"))
        networks = stack.enter_context(connected_networks())
        stack.enter_context(ended_by_mark(folder))
        head, other = ADDRESSES.values()
        environment = {
            **marked(folder),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "RAY_ADDRESS": f"{head}:{PORT}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
        }
        for name in INTERFACES:
            environment.pop(name, None)
        starts = {
            head: ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"],
            other: [f"--address={head}:{PORT}"],
        }
        for network, (address, words) in zip(networks, starts.items(), strict=True):
            own = (f"--node-ip-address={address}", f"--num-cpus={num_cpus}")
            ray = [BIN / "ray", "start", *words, *own, "--object-store-memory=100000000"]
            _require_done(_inside(network, ray, environment))
        joined = JOINED.format(num_cpus=2 * num_cpus)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return _inside(networks[0], [sys.executable, *words], environment)

        _require_done(run("-c", joined))
        yield run


def _inside(
    network: str, command: list[object], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    words = ["ip", "netns", "exec", network, *map(str, command)]
    return subprocess.run(words, env=environment, check=False, capture_output=True, text=True)


def _require_done(command: subprocess.CompletedProcess[str]) -> None:
    assert command.returncode == 0, command.stdout + command.stderr


@contextmanager
def connected_networks() -> Iterator[list[str]]:
    """Yields the names of two networks, one per address, with a cable between them. Skips the test
    where networks cannot be made."""
    with ExitStack() as stack:
        networks = [stack.enter_context(_network(interface)) for interface in ADDRESSES]
        _connect(networks)
        yield networks


@contextmanager
def _network(interface: str) -> Iterator[str]:
    """Yields the name of a new network of the kernel."""
    name = f"pipegap-{os.getpid()}-{interface}"
    if which("ip") is None or subprocess.run(["ip", "netns", "add", name], check=False).returncode:
        pytest.skip("takes root and the program ip: nodes are networks of the kernel")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def _connect(networks: list[str]) -> None:
    """Lays a cable between the two networks."""
    first, second = zip(ADDRESSES, networks, strict=True)
    cable = ["add", first[0], "netns", first[1], "type", "veth", "peer", "name", second[0]]
    commands = [["link", *cable, "netns", second[1]]]
    for interface, network in (first, second):
        commands += [
            ["-n", network, "addr", "add", f"{ADDRESSES[interface]}/24", "dev", interface],
            *(["-n", network, "link", "set", name, "up"] for name in ("lo", interface)),
        ]
    for command in commands:
        subprocess.run(["ip", *command], check=True)
