"""The Ray cluster of a driver, which is that of RAY_ADDRESS or its own on this machine; and the
session in which trials run there, until the driver is asked to stop.

All nodes of a cluster must share the store.
"""

import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray._private import utils as ray_utils
from ray._private import worker as ray_worker
from ray._private.node import Node
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # compiled
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipegap.sweeps.cluster.notices import Ends
from pipegap.sweeps.tracking.tracker import Tracking
from pipegap.trainer.base.children import load, num_cores, repeated, scratch, socket_base
from pipegap.trainer.base.cli import say, stopping
from pipegap.trainer.base.errors import BadInput, Unavailable, one_line
from pipegap.trainer.store.store import SweepStore

CONNECT_WITHIN = 8.0
"""Seconds that the cluster of RAY_ADDRESS has to accept a connection, and as many to answer."""
REMEDY = "; correct RAY_ADDRESS, or unset it for a cluster of this sweep's own"
SLOW_START = 60.0
"""Seconds after which a driver says that Ray has not started yet, again and again."""
ANSWER_WITHIN = 60.0
"""Seconds that a node has to say whether it sees the store."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONSAFEPATH": "1",
}
"""Variables of the workers. A worker runs each of its trials in a new thread, for which glibc would
open a new arena, and so keep the memory of the trials before. Nothing is imported from the working
folder first, by Ray's other processes either."""

UNLESS_SET = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
"""Likewise, unless the driver's environment says otherwise. By itself torch's compiler starts as
many processes as the machine has cores, up to 32, for each trial and each rank; layers of a shape
share a graph, so a trial has few kernels to compile."""

SAYS = "running trials save a checkpoint and stop"
"""What a driver says when a signal asks it to stop."""


def _nothing(*_: object, **__: object) -> None:
    """Stands for a function of Ray's of which we want nothing."""


CHANGED: Mapping[tuple[Any, str], Any] = {
    # Ray's first node would start what asks a cloud for more nodes, what sends workers' logs to the
    # driver, and what serves the dashboard; each imports Ray, which takes 0.6 to 1 s.
    (Node, "start_monitor"): _nothing,
    (Node, "start_log_monitor"): _nothing,
    (Node, "start_api_server"): _nothing,
    # SIGTERM for a group of processes (`timeout`, Slurm) would end the cluster under its driver.
    (services, "ConsolePopen"): partial(services.ConsolePopen, process_group=0),
    (ray_utils, "set_sigterm_handler"): _nothing,  # ours stays
}
"""What replaces Ray's own functions while Ray starts here."""

OF_ANOTHER = re.compile(r"RAY_(?!AUTH_|DEFAULT_|ENABLE_|OBJECT_STORE_|TLS_|US(AG)?E_)[A-Z_]+")
"""Variables by which Ray describes a job, a node or a cluster that exists already, such as
RAY_JOB_CONFIG_JSON_ENV_VAR, RAY_RUNTIME_ENV_HOOK, RAY_OVERRIDE_RESOURCES or RAY_REDIS_ADDRESS: its
processes and notebooks have them. Most settings are in lower case (RAY_worker_niceness)."""
NOTHING = re.compile(r"(?!)")  # matches no name
OF_RAY, OF_RAY_AGAIN, TOKEN = "r", "s", "token"
"""Ray's folder inside a driver's own, that of a second start, and the file by which the processes
of its cluster know each other. Everyone may enter what Ray makes, and nobody else may enter a
driver's folder."""


def _environment() -> dict[str, str]:
    variables = {name: os.environ.get(name, value) for name, value in UNLESS_SET.items()}
    return {**ENVIRONMENT, **variables}


@contextmanager
def cluster() -> Iterator[tuple[Path, Callable[[], bool]]]:
    """Connect to the cluster of RAY_ADDRESS, or start one here that listens on loopback only.

    Without RAY_ADDRESS the cluster is this driver's own, whatever others this machine has. Yields
    the driver's temporary folder, and whether a signal asked to stop while Ray started, which would
    crash this process if it ended then. Raises Unavailable if Ray does not start or answer.
    """
    base = socket_base(os.environ.get("RAY_TMPDIR", ""))  # the folder's name is random
    with scratch(base, "pipegap-ray-") as folder, _errors_in_one_line():
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"runtime_env": {"env_vars": _environment()}}
        if is_own := address == "local":
            options = {
                "_temp_dir": str(folder / OF_RAY),
                "include_dashboard": False,
                "num_cpus": num_cores(),
            }
        try:
            if not is_own:
                _require_listening(address)
                _require_answer(address)
            # A cluster of our own has them from the start: for a job's variables each of its
            # processes would be started anew, which takes a second. In a job of Ray's they replace
            # those of that name which the job has, where Ray would refuse to start.
            variables = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
            if is_own:
                variables = {**_environment(), **_token(folder)}
            with (
                _in_environment(variables, without=OF_ANOTHER if is_own else NOTHING),
                _changed(),
                stopping("stops once Ray has started") as asked_to_stop,
                repeated(_say_that_it_is_slow, SLOW_START, "Ray's start"),
            ):
                start = partial(
                    ray.init,
                    address=address,
                    # Workers look for modules where this process does, in the same order. Ray
                    # itself lets them look in the working folder first, but in a job of its client:
                    # there a `torch.py` of the user's would end every trial. Reversed: a worker
                    # puts each path before those it has.
                    job_config=JobConfig(
                        _client_job=True, _py_driver_sys_path=[*reversed(sys.path)]
                    ),
                    log_to_driver=False,
                    logging_level=logging.CRITICAL,  # our lines say what failed, and what to do
                )
                try:
                    start(**options)
                except Exception as error:
                    if not is_own or asked_to_stop():
                        raise
                    # On a busy machine Ray's own time of half a minute may be too short once.
                    _end_processes_of(folder)
                    say(f"Ray did not start ({_reason(error)}): it is started once more")
                    start(**{**options, "_temp_dir": str(folder / OF_RAY_AGAIN)})
        except Exception as error:  # Ray raises ConnectionError, RuntimeError, Exception itself
            where, remedy = ("here", "") if is_own else (f"RAY_ADDRESS={address}", REMEDY)
            why = f"{_reason(error)}{remedy}"
            raise Unavailable(f"Ray does not start or answer ({where}): {why}") from error
        try:
            yield folder, asked_to_stop
        finally:
            ray.shutdown()
            AuthenticationTokenLoader.instance().reset_cache()  # the token's file is deleted next


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _say_that_it_is_slow() -> bool:
    say(f"Ray has not started or answered yet: {load()}")
    return True


def _end_processes_of(folder: Path) -> None:
    """End the processes of a cluster that did not start: their command lines name its folder."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(folder).encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


def _token(folder: Path) -> Mapping[str, str]:
    """Make a token for a cluster of our own: Ray would keep one in HOME, which may not be writable.

    Returns the variable that names its file. RAY_AUTH_TOKEN goes before it.
    """
    path = folder / TOKEN
    path.write_text(secrets.token_hex(32), encoding="utf-8")
    AuthenticationTokenLoader.instance().reset_cache()  # of the cluster before
    return {"RAY_AUTH_TOKEN_PATH": str(path)}


@contextmanager
def _in_environment(variables: Mapping[str, str], without: re.Pattern[str]) -> Iterator[None]:
    """Let processes that are started within it inherit the variables, and none of those whose whole
    name is `without`."""
    old_environment = dict(os.environ)
    for name in filter(without.fullmatch, old_environment):
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - old_environment.keys():
            del os.environ[name]
        os.environ.update(old_environment)


@contextmanager
def _changed() -> Iterator[None]:
    """Let Ray start as CHANGED says."""
    originals = {(owner, name): getattr(owner, name) for owner, name in CHANGED}
    for (owner, name), ours in CHANGED.items():
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Print the first line of what Ray reports as an error, once, on stderr.

    Ray itself prints a raylet's log, twice, and ends this process a minute after its raylet died.
    """
    original, messages = ray_worker.print_to_stdstream, set[str]()

    def print_once(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        line = one_line(data["lines"][0].strip().partition("\n")[0])
        if line not in messages:
            messages.add(line)
            say(f"Ray: {line} (a sweep that ends goes on by the same command)")

    ray_worker.print_to_stdstream = print_once
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = original


def _require_listening(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT: Ray tries for minutes, and prints that."""
    host, _, port = address.rpartition("//")[2].rpartition(":")  # also of ray://HOST:PORT
    if port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_WITHIN):
            pass


def _require_answer(address: str) -> None:
    """Raises TimeoutError if what listens there does not answer as Ray does, and ConnectionError
    with Ray's reason if it refuses, as without its token: asked by `ray.init` itself, Ray would try
    for 20 s to a minute, then end this process or give no reason."""
    where = [] if address == "auto" else ["--address", address]
    try:
        process = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "health-check", *where],
            timeout=CONNECT_WITHIN,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {CONNECT_WITHIN:.0f} s") from None
    if process.returncode:
        raise ConnectionError(one_line(process.stderr.strip().rpartition("\n")[2]))


def require_seen_by_nodes(store: SweepStore) -> None:
    """Raise BadInput if a node does not see the store, or sees another one under its name.

    Every other node must see what the driver has made, and fail to create it exclusively. Nodes
    that join later are not checked.
    """
    this_node = ray.get_runtime_context().get_node_id()
    other_nodes = [n for n in ray.nodes() if n["Alive"] and n["NodeID"] != this_node]
    if not other_nodes:
        return
    task: Any = ray.remote(_sees)
    with store.probe() as sees:
        # All nodes are asked before any answer is awaited: a slow one costs its own time alone.
        answers = {
            node["NodeManagerAddress"]: task.options(
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(sees)
            for node in other_nodes
        }
        for address, answer in answers.items():
            with suppress(ray.exceptions.RayError):  # the node has left, or is busy
                if not ray.get(answer, timeout=ANSWER_WITHIN):
                    allowed = "must be storage that all nodes share: node"
                    raise BadInput("results", store.name, f"{allowed} {address} does not see it")


def _sees(sees: Callable[[], bool]) -> bool:
    """Whether this node sees what the driver made."""
    return sees()


@dataclass(frozen=True)
class Session:
    """What trials of a store run with. `gpus_per_trial` and `tracking` are those of a request."""

    title: str
    """The name by which people know the session."""
    store: SweepStore
    gpus_per_trial: float
    tracking: Tracking
    folder: Path
    """The folder for temporary files."""
    asked_to_stop: Callable[[], bool]
    ends: Ends
    """The callback for the end of every trial that ran here."""


@contextmanager
def session(
    title: str, store: SweepStore, gpus_per_trial: float, tracking: Tracking, ends: Ends
) -> Iterator[Session]:
    """Yield a session, which a signal asks to stop, and so may its `ends`.

    Raises Unavailable if Ray does not start, and BadInput if a node of the cluster does not see the
    store.
    """
    # Ray installs its signal handlers when it starts; `stopping` replaces them after that.
    with cluster() as (folder, asked_before), stopping(SAYS) as asked_since:
        require_seen_by_nodes(store)

        def asked_to_stop() -> bool:
            return asked_before() or asked_since() or ends.has_failed()

        yield Session(title, store, gpus_per_trial, tracking, folder, asked_to_stop, ends)
