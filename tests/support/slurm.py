"""Slurm with two nodes on this machine, each in a network and with a host name of its own."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which

import pytest

from tests.support.ray_head import ended_by_mark, marked
from tests.support.two_nodes import ADDRESSES, connected_networks

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
