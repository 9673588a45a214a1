"""A Ray cluster on this machine, started as users do, with a Jobs API behind a token."""

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
def head(num_cpus: int = 2, num_others: int = 0) -> Iterator[tuple[dict[str, str], Path]]:
    """Yields the environment in which a client finds the cluster, and the folder of its files.

    The cluster has `num_others` nodes beside its head, each with `num_cpus`. Nothing is left after.
    """
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: sockets lie in it
        port, dashboard, agent, agent_grpc, runtime, metrics, client = _free_ports(7)
        environment = {**marked(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        if num_others:
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # nodes reach each other
        node = [
            *(str(BIN / "ray"), "start", "--block", "--node-ip-address=127.0.0.1"),
            *(f"--num-cpus={num_cpus}", "--min-worker-port=0", "--max-worker-port=0"),
            "--object-store-memory=100000000",
        ]
        command = [
            *(*node, "--head", f"--port={port}", f"--dashboard-port={dashboard}"),
            *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
            *(f"--dashboard-agent-grpc-port={agent_grpc}", f"--runtime-env-agent-port={runtime}"),
            *(f"--ray-client-server-port={client}", "--include-dashboard=true"),
            f"--temp-dir={folder}",
        ]
        address, log = f"http://127.0.0.1:{dashboard}", Path(folder) / "start.log"
        with ended_by_mark(folder), log.open("w") as said:
            process = subprocess.Popen(
                command, env=environment, stdout=said, stderr=said, start_new_session=True
            )
            _await_jobs_api(process, address, log)
            joining = [*node, f"--address=127.0.0.1:{port}"]
            others = [
                subprocess.Popen(joining, env=environment, stdout=said, stderr=said)
                for _ in range(num_others)
            ]
            del environment[MARK]
            try:
                yield {**environment, "RAY_API_SERVER_ADDRESS": address}, Path(folder)
            finally:
                for started in (process, *others):
                    started.kill()
                    started.wait()


def marked(mark: str) -> dict[str, str]:
    """An environment for servers on loopback only, by which `ended_by_mark` finds them."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so named
        "PATH": f"{BIN}:{os.environ['PATH']}",
        MARK: mark,
    }


@contextmanager
def ended_by_mark(mark: str) -> Iterator[None]:
    """Ends all processes with that mark: not `ray stop`, which ends every cluster of a machine."""
    try:
        yield
    finally:
        deadline = time.monotonic() + 30
        while left := members(mark):
            assert time.monotonic() < deadline, f"left: {left}"
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)


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


def members(mark: str) -> list[int]:
    """Processes with that mark, which all descendants inherit; one that has ended has none."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found
