"""A Ray cluster on this machine, started as users do, with a Jobs API behind a token."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from pipegap.trainer.base.places import CODE_ROOT

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


# Slurm with two nodes on this machine, each in a network and with a host name of its own.

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel")
NODES = ("n1", "n2")
CONF = """
ClusterName=pipegap
SlurmctldHost=n1({addresses[0]})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
NodeName=n1 NodeAddr={addresses[0]} CPUs=1
NodeName=n2 NodeAddr={addresses[1]} CPUs=1
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""
Run = Callable[..., str]


@contextmanager
def slurm(folder: Path) -> Iterator[Run]:
    """Yields a function that runs a command on the first node, and returns what it prints.

    `folder` has a short path: sockets lie in it. Skips the test where Slurm is not installed; all
    processes of Slurm and of its jobs are gone afterwards.
    """
    if missing := [program for program in PROGRAMS if which(program) is None]:
        pytest.skip(f"takes Slurm (apt-get install slurm-wlm munge): {missing[0]} is missing")
    if os.getuid():
        pytest.skip("takes root: nodes are networks of the kernel")
    conf, environment = folder / "slurm.conf", {**marked(str(folder)), "PYTHONUNBUFFERED": "1"}
    environment["SLURM_CONF"] = str(conf)
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)  # which ours set, for one machine
    conf.write_text(CONF.format(addresses=[*ADDRESSES.values()], folder=folder))
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        networks = stack.enter_context(connected_networks())
        started: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: [process.wait() for process in started])
        stack.enter_context(ended_by_mark(str(folder)))

        def inside(node: int) -> list[str]:
            # `ip netns exec` would hide the cgroups that slurmd asks for.
            return ["nsenter", f"--net=/run/netns/{networks[node]}"]

        def start(node: int, *command: str) -> None:
            named = f"hostname {NODES[node]} && exec {' '.join(command)}"
            words = [*inside(node), "unshare", "--uts", "sh", "-c", named]
            with (folder / f"{command[0]}.out").open("a") as log:
                started.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))

        def run(*command: object) -> str:
            words = [*inside(0), *map(str, command)]
            ended = subprocess.run(
                words, env=environment, check=False, capture_output=True, text=True
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr
            return ended.stdout

        files = (f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed"))
        key = f"--key-file={folder}/key"
        start(0, "munged", "--force", "--foreground", f"--socket={folder}/munge", key, *files)
        start(0, "slurmctld", "-D")
        for node, name in enumerate(NODES):
            start(node, "slurmd", "-D", "-N", name)
        deadline = time.monotonic() + 60
        while run("sinfo", "--noheader", "--format=%D %T").split() != ["2", "idle"]:
            logs = "".join(path.read_text() for path in folder.glob("*.log"))
            assert time.monotonic() < deadline, logs
            time.sleep(0.5)
        yield run


# Machines that are reachable by SSH, on this one: each has a network, a name, a home and
# processes of its own.

PROGRAMS_OF_SSH = {
    "/usr/sbin/sshd": "openssh-server",
    "rsync": "rsync",
    "git": "git",
    "make": "make",
}
"""What it takes → the package of Debian that has it."""
OF_ITS_OWN = ("--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
CONF_OF_SSH = """
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
SetEnv RAY_TMPDIR={folder}/tmp GIT_TEMPLATE_DIR={folder}/template
"""
SET_UP = """#!/bin/sh
mkdir .venv && ln -s {checkout}/.venv/* .venv && touch .venv/.ready
"""
"""After `git clone`: a machine has this checkout's environment, since to make one takes minutes."""


@dataclass(frozen=True)
class Machines:
    """The user's machine, beside the second of two servers, whose user is root."""

    home: Path
    """Of the user, with a key that opens both."""
    environment: dict[str, str]
    entered: list[str]
    servers: list[subprocess.Popen[bytes]]

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        """Starts the words as a command on the user's machine; what it says is in `said`."""
        command = [*self.entered, *map(str, words)]
        with self.said.open("w") as log:  # no pipe: the connections that ssh keeps would hold it
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    @property
    def said(self) -> Path:
        """What the command said that was started last."""
        return self.home / "said"

    def run(self, *words: object) -> str:
        """What the words print there."""
        code = self.start(*words).wait()
        assert code == 0, self.said.read_text()
        return self.said.read_text()

    def lose(self, number: int) -> None:
        """Ends all processes of a server at once, as if its power failed."""
        self.servers[number].kill()
        self.servers[number].wait()


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Yields them. Skips the test where they cannot be; no process is left.

    `folder` has a short path: sockets lie in it.
    """
    if missing := [
        package for program, package in PROGRAMS_OF_SSH.items() if which(program) is None
    ]:
        pytest.skip(f"takes servers of SSH: apt-get install {missing[0]}")
    own = ["unshare", "--mount", *OF_ITS_OWN, "true"]
    if subprocess.run(own, check=False, capture_output=True).returncode:
        pytest.skip("takes root: machines are namespaces of the kernel")
    for name in ("host", "user"):
        made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(made, check=True)
    hook = folder / "template/hooks/post-checkout"
    hook.parent.mkdir(parents=True)
    hook.write_text(SET_UP.format(checkout=CODE_ROOT))
    hook.chmod(0o755)
    (folder / "tmp").mkdir()
    Path("/run/sshd").mkdir(exist_ok=True)  # as the package's service does
    environment = marked(str(folder))
    with ExitStack() as stack:
        networks = stack.enter_context(connected_networks())
        servers: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: [server.wait() for server in servers])
        stack.enter_context(ended_by_mark(str(folder)))
        for network, (name, address) in zip(networks, ADDRESSES.items(), strict=True):
            home = folder / name
            conf = folder / f"{name}.conf"
            conf.write_text(CONF_OF_SSH.format(address=address, folder=folder))
            serve = f"hostname {name} && exec /usr/sbin/sshd -D -f {conf} -E {folder}/{name}.log"
            entered = _entered(network, home, *OF_ITS_OWN)
            servers.append(subprocess.Popen([*entered, "sh", "-c", serve], env=environment))
        home = folder / "home"
        entered = _entered(networks[1], home)
        (home / ".ssh").mkdir()
        (folder / "user").rename(home / ".ssh/id_ed25519")
        of_user = {**environment, "HOME": str(home), "TMPDIR": str(folder / "tmp")}
        yield Machines(home, of_user, entered, servers)


def _entered(network: str, home: Path, *more: str) -> list[str]:
    """What goes before a command on a machine: root's home there is `home`, as ssh looks it up, and
    so is the folder of temporary files, which has the same path on all."""
    home.mkdir()
    users = home.with_suffix(".passwd")
    lines = Path("/etc/passwd").read_text().splitlines()
    [root] = [line.split(":") for line in lines if line.startswith("root:")]
    others = [line for line in lines if not line.startswith("root:")]
    users.write_text("\n".join([":".join([*root[:5], str(home), *root[6:]]), *others, ""]))
    bound = f"mount --bind {users} /etc/passwd && mount --bind {home} {home.parent}/tmp"
    # `ip netns exec` would mount what shows the network's devices, and no cgroups.
    inside = ["nsenter", f"--net=/run/netns/{network}", "unshare", "--mount", *more]
    return [*inside, "sh", "-c", f'{bound} && exec "$@"', "sh"]


# Two nodes of a Ray cluster on this machine, each in a network of its own, as on two machines.
#
# Their processes share files and memory alone: the nodes reach each other by one cable, whose
# ends have other names, and the host's own name leads each to its loopback.

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

RunOfTwoNodes = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def two_nodes(num_cpus: int) -> Iterator[RunOfTwoNodes]:
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
