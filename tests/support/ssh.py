"""Machines that are reachable by SSH, on this one: each has a network, a name, a home and processes
of its own."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import pytest

from pipegap.trainer.base.places import CODE_ROOT
from tests.support.ray_head import ended_by_mark, marked
from tests.support.two_nodes import ADDRESSES, connected_networks

PROGRAMS = {"/usr/sbin/sshd": "openssh-server", "rsync": "rsync", "git": "git", "make": "make"}
"""What it takes → the package of Debian that has it."""
OF_ITS_OWN = ("--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
CONF = """
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
    if missing := [package for program, package in PROGRAMS.items() if which(program) is None]:
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
            conf.write_text(CONF.format(address=address, folder=folder))
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
