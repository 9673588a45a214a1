"""A driver's own cluster, and the wish to stop that its trials can ask for."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.tune.execution import class_cache

from sweeps.__main__ import main
from sweeps.cluster import connection, stop_flag
from sweeps.cluster.tune_hooks import inherited_environment
from sweeps.plan.sweep_plan import all_planned, plan_sweeps
from sweeps.request.command_line import parse_request
from tests.support import small
from tests.support.records import leave_finished

OWN_CLUSTER = """
import io, os, signal, sys, time
from contextlib import redirect_stderr
from pathlib import Path
import ray
from ray._private.utils import publish_error_to_driver
from sweeps.cluster.connection import ENVIRONMENT, cluster
from sweeps.cluster.stop_flag import stop_requested
from sweeps.cluster.tune_hooks import StopWhenAsked

def pids(of):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if of in path.read_text():
                yield int(path.parent.name)
        except OSError:
            pass

def answers(flag, wanted):
    deadline = time.monotonic() + 120
    while (answer := ray.get(flag.is_set.remote(), timeout=120)) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.2)

def kill(flag):
    pid = ray.get(flag.__ray_call__.remote(lambda self: os.getpid()), timeout=60)
    os.kill(pid, signal.SIGKILL)

def listening():
    lines = [l.split() for f in ("tcp", "tcp6") for l in open(f"/proc/net/{f}").readlines()[1:]]
    return {l[1] for l in lines if l[3] == "0A"}

def report(error):
    gcs_client = ray._private.worker.global_worker.gcs_client
    publish_error_to_driver("test", error, gcs_client=gcs_client)

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

asked = False
before = listening()
with cluster() as folder:
    opened = {address.split(":")[0] for address in listening() - before}
    assert opened, "Ray has servers"
    assert opened <= LOOPBACK, opened
    sockets = ray.get_runtime_context().gcs_address
    assert sockets != "127.0.0.1:1", sockets
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.parent.parent == folder, session
    parts = [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids(str(folder))]
    assert any("raylet" in part for part in parts)
    for unused in ("/dashboard.py", "/monitor.py", "/log_monitor.py"):
        assert not any(unused in part for part in parts), unused
    stop = StopWhenAsked(lambda: asked, {"one"})
    assert not stop_requested(stop.flag)
    variables = stop.flag.__ray_call__.remote(lambda self: dict(os.environ))
    assert ENVIRONMENT.items() <= ray.get(variables, timeout=60).items()
    kill(stop.flag)
    for _ in range(100):
        assert not stop_requested(stop.flag), "no wish, only a dead process"
        time.sleep(0.05)
    asked = True
    assert not stop.stop_all()
    deadline = time.monotonic() + 120
    kill_at = time.monotonic() + 1
    killed = False
    while not (killed and stop_requested(stop.flag)):
        assert time.monotonic() < deadline
        stop.stop_all()
        if not killed and stop_requested(stop.flag):
            kill(stop.flag)
            killed = True
        time.sleep(0.1)
    with redirect_stderr(io.StringIO()) as said:
        for error in ("It is gone\\nits log", "It is gone\\nits log", "Another"):
            report(error)
        while "Another" not in said.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    lines = [line.partition(" (")[0] for line in said.getvalue().splitlines()]
    assert lines == ["Ray: It is gone", "Ray: Another"], lines
assert not folder.exists()
"""


def test_a_driver_starts_its_own_cluster_and_only_a_real_wish_stops(tmp_path: Path) -> None:
    """A stale announcement of another cluster misleads nobody; of the sockets that appear, none can
    be reached from another machine; what nobody asks is not started; the flag's process is killed
    twice: before a wish to stop, and after it."""
    announced = Path("/tmp/ray/ray_current_cluster")
    before = announced.read_text() if announced.exists() else None
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", OWN_CLUSTER],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert (announced.read_text() if announced.exists() else None) == before


class Flag:
    """Stands for the actor; `is_set.remote()` returns what `ray.get` is given."""

    def __init__(self) -> None:
        self.is_set = self

    def remote(self) -> str:
        return "answer"


@pytest.mark.parametrize(
    ("error", "stops"),
    [
        (ray.exceptions.ActorUnavailableError("restarts", None), False),
        (ray.exceptions.GetTimeoutError("busy"), False),
        (ray.exceptions.NodeDiedError("another node"), False),
        (ray.exceptions.ActorDiedError(), True),
    ],
)
def test_a_flag_that_does_not_answer_is_no_wish_to_stop(
    error: Exception, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_: object, timeout: float) -> bool:
        raise error

    monkeypatch.setattr(stop_flag.ray, "get", get)
    assert stop_flag.stop_requested(Flag()) == stops


@pytest.mark.parametrize(
    ("given", "joins"), [(None, "local"), ("", "local"), ("auto", "auto"), ("h:6379", "h:6379")]
)
def test_a_cluster_is_joined_only_by_its_address(
    given: str | None, joins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def init(**words: Any) -> None:
        told = words.get("runtime_env", {}).get("env_vars", {})
        seen.append(words | {"inherited": {**os.environ}, "given": told})

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection.socket, "create_connection", lambda *_: nullcontext())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    before = dict(os.environ)
    with connection.cluster() as folder:
        assert folder.is_dir()
    assert seen[0]["address"] == joins
    assert ("_temp_dir" in seen[0]) == (joins == "local")
    # Processes of Ray that start here inherit what those of another cluster are given.
    variables = seen[0]["inherited" if joins == "local" else "given"]
    assert connection.ENVIRONMENT.items() <= variables.items()
    assert ("runtime_env" in seen[0]) == (joins != "local")
    assert dict(os.environ) == before


def test_tune_gives_trials_no_variables_and_ray_no_keys() -> None:
    told, given = {*class_cache.ENV_VARS_TO_PROPAGATE}, {**class_cache.DEFAULT_ENV_VARS}
    with inherited_environment():
        assert {name for name in told if name.startswith("AWS_")}
        assert not {n for n in class_cache.ENV_VARS_TO_PROPAGATE if n.startswith("AWS_")}
        assert not class_cache.DEFAULT_ENV_VARS
    assert (told, given) == (class_cache.ENV_VARS_TO_PROPAGATE, class_cache.DEFAULT_ENV_VARS)


@pytest.mark.parametrize("joins", [False, True])
def test_ray_that_does_not_start_or_answer_is_one_line_at_once(
    joins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("The current node timed out\nduring startup")

    where, why = "local", "timed out during startup"
    monkeypatch.setattr(connection.ray, "init", init)
    if joins:
        with socket.create_server(("127.0.0.1", 0)) as held:
            where, why = f"127.0.0.1:{held.getsockname()[1]}", "refused"
        monkeypatch.setenv("RAY_ADDRESS", where)
    assert main(small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"Ray does not start or answer ({where})" in printed
    assert why in printed


def test_nobody_waits_for_a_report_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes when the cluster has started."""
    words = stopped(tmp_path, monkeypatch, lambda: None)
    assert main(words) == 143
    printed = capsys.readouterr().out.splitlines()
    assert "trials to go" in printed[-2]
    assert printed[-1].endswith(f"python -m analysis results={tmp_path / 'results'} out=report")
    assert not (tmp_path / "results" / "reports").exists()


def test_what_is_left_is_priced_by_what_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_one() -> None:
        [first, *_] = all_planned(plan_sweeps(parse_request(words)))
        leave_finished(first.folder, first.config, tokens_per_second=1000.0)

    words = stopped(tmp_path, monkeypatch, finish_one)
    assert main(words) == 143
    record = json.loads((tmp_path / "results" / "sweeps" / "main-micro.json").read_text())
    prices = [trial["seconds"] for trial in record["trials"].values()]
    assert any(seconds is not None for seconds in prices)


def stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> list[str]:
    """The words of a sweep whose cluster is a stand-in: as soon as it has started, `meanwhile`
    happens and the driver is asked to stop."""

    def ask(_: Path) -> None:
        meanwhile()
        os.kill(os.getpid(), signal.SIGTERM)

    def init(**_: object) -> None:
        pass

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    monkeypatch.setattr(connection, "require_seen_by_nodes", ask)
    words = small.overrides(folder, "sweep=main,momentum", "scale=micro", "seeds=[0]")
    return [word for word in words if not word.startswith("optimizer")]


def test_a_long_temporary_folder_is_too_long_for_sockets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    folder = f"{connection.temporary_base()}/pipegap-ray-12345678/{connection.OF_RAY}"
    assert len(f"{folder}/session_2026-11-22_11-18-11_123456_1234567/sockets/plasma_store") < 108
