"""Which cluster a driver joins or starts, and what it does when it is stopped."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import connection, gang, stop_flag
from pipegap.sweeps.plan.sweep_plan import all_planned, plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.children import num_cores
from pipegap.trainer.base.errors import GangFailed
from pipegap.trainer.ranks.supervisor import Parent
from tests.support import small
from tests.support.records import leave_finished


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
    monkeypatch.setattr(connection, "_require_answer", lambda address: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    before = dict(os.environ)
    with connection.cluster() as (folder, _):
        assert folder.is_dir()
    assert seen[0]["address"] == joins
    assert ("_temp_dir" in seen[0]) == (joins == "local")
    assert seen[0].get("num_cpus") == (num_cores() if joins == "local" else None)
    # Processes of Ray that start here inherit what those of another cluster are given.
    variables = seen[0]["inherited" if joins == "local" else "given"]
    assert connection.ENVIRONMENT.items() <= variables.items()
    assert ("runtime_env" in seen[0]) == (joins != "local")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ray.exceptions.ActorDiedError(), "The actor died unexpectedly"),
        (ray.exceptions.GetTimeoutError("no answer"), "no answer"),
    ],
)
def test_a_gang_that_dies_while_it_starts_is_a_gang_that_failed(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was started of it is ended."""

    def get(answer: object, timeout: float) -> object:
        raise error

    killed: list[Any] = []
    table = {"bundles_to_node_id": {0: "here", 1: "here"}}
    monkeypatch.setattr(gang, "get_current_placement_group", lambda: "group")
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group: table)
    monkeypatch.setattr(
        gang, "_start", lambda *_: SimpleNamespace(open_store=SimpleNamespace(remote=lambda: "its"))
    )
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", killed.append)
    with pytest.raises(GangFailed, match=f"^rank 0 died while it started: {why}"):
        gang.run_gang_on_ray(lambda: None, (), 2, Parent(lambda message: None, 1.0))
    assert len(killed) == 2


@pytest.mark.parametrize("joins", [False, True])
def test_ray_that_does_not_start_or_answer_is_one_line_at_once(
    joins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("The current node timed out\nduring startup")

    where, why = "here", "timed out during startup"
    monkeypatch.setattr(connection.ray, "init", init)
    if joins:
        with socket.create_server(("127.0.0.1", 0)) as held:
            address = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        where, why = f"RAY_ADDRESS={address}", "refused; correct RAY_ADDRESS, or unset it"
    assert main(small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")) == 1
    printed = capsys.readouterr().err
    assert printed.count("it is started once more\n") == (not joins)
    assert printed.count("\n") == 1 + (not joins)
    assert f"Ray does not start or answer ({where})" in printed
    assert why in printed


def test_what_listens_and_is_no_ray_ends_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "CONNECT_WITHIN", 5.0)  # it takes a second to ask
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{silent.getsockname()[1]}")
        assert main(small.overrides(tmp_path, "sweep=main", "scale=micro", "seeds=[0]")) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "no answer within 5 s; correct RAY_ADDRESS, or unset it" in printed


def test_nobody_waits_for_a_report_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signal comes when the cluster has started."""
    words = stopped(tmp_path, monkeypatch, lambda: None)
    assert main(words) == 143
    printed = capsys.readouterr().out.splitlines()
    assert "trials to go" in printed[-2]
    assert printed[-1].endswith(f"pipegap report results={tmp_path / 'results'} out=report")
    assert not (tmp_path / "results" / "reports").exists()


@pytest.mark.parametrize("address", ["", "local"])
def test_a_cluster_of_our_own_is_the_same_however_it_is_said(address: str) -> None:
    """It listens on loopback, and variables that Tune no longer knows do not end it."""
    asks = "import os, pipegap.sweeps; print(*sorted(n for n in os.environ if n in os.sys.argv))"
    names = ["RAY_ADDRESS", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "TUNE_RESULT_DIR"]
    environment = {**os.environ, "RAY_ADDRESS": address, "TUNE_RESULT_DIR": "/anywhere"}
    command = [sys.executable, "-c", asks, *names]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]


def test_a_wish_to_stop_while_ray_starts_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray sets a handler of its own, which ends the process with code 15 and without a word."""

    def init(**_: object) -> None:
        ray._private.utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(connection.ray, "init", init)
    monkeypatch.setattr(connection.ray, "shutdown", lambda: None)
    with connection.cluster() as (_, asked_to_stop):
        assert asked_to_stop()


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
