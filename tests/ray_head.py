"""A Ray cluster of one node, started as users do, with a Jobs API behind a token."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
TOKEN = "a token of the tests alone, longer than 32 characters"
START_WITHIN = 90.0
MARK = "PIPEGAP_TEST_HEAD"


@contextmanager
def head(num_cpus: int = 2) -> Iterator[dict[str, str]]:
    """Yields the environment in which a client finds the cluster; nothing of it is left after."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: sockets lie in it
        port, dashboard, agent, agent_grpc, runtime, metrics, client = _free_ports(7)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so named: servers on loopback only
            MARK: folder,
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        command = [
            *(str(BIN / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"),
            *(f"--port={port}", f"--dashboard-port={dashboard}", f"--num-cpus={num_cpus}"),
            *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
            *(f"--dashboard-agent-grpc-port={agent_grpc}", f"--runtime-env-agent-port={runtime}"),
            *(f"--ray-client-server-port={client}", "--min-worker-port=0"),
            *("--max-worker-port=0", "--object-store-memory=100000000"),
            *("--include-dashboard=true", f"--temp-dir={folder}"),
        ]
        with open(f"{folder}.log", "w") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        try:
            address = f"http://127.0.0.1:{dashboard}"
            _await_jobs_api(process, address, Path(f"{folder}.log"))
            del environment[MARK]
            yield {**environment, "RAY_API_SERVER_ADDRESS": address}
        finally:
            _end(folder, process)
            os.unlink(f"{folder}.log")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def _await_jobs_api(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    import requests

    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            header = {"Authorization": f"Bearer {TOKEN}"}
            if requests.get(f"{address}/api/jobs/", headers=header, timeout=5).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    said = log.read_text()[-2000:]
    if "in use" in said:
        pytest.skip(f"no free ports for a Ray head: {said}")
    raise RuntimeError(f"no Ray head within {START_WITHIN:.0f} s: {said}")


def members(folder: str) -> list[int]:
    """Ids of the processes that a head with this folder started: all inherit its environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={folder}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _end(folder: str, process: subprocess.Popen[bytes]) -> None:
    """Not by `ray stop`, which ends every cluster of the machine."""
    for _ in range(2):  # what was starting while it was ended
        for pid in members(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.2)
    assert not members(folder), "a process of the cluster is left"
