"""A driver's own cluster: a sweep runs and is done, no file has a key, a wish to stop is heard."""

import gc
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeVar

import psutil
import pytest
import ray
from ray._private.runtime_env import uv_runtime_env_hook
from ray._private.utils import publish_error_to_driver

from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import connection, first_trial
from pipegap.sweeps.cluster.stop_flag import stop_requested
from pipegap.sweeps.cluster.tune_hooks import StopWhenAsked
from pipegap.sweeps.plan.sweep_plan import plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from tests.support import small, webhook
from tests.support.keys import leaks, new_keys
from tests.support.records import leave_finished
from tests.support.reports import with_figures
from tests.support.webhook import SECRET

T = TypeVar("T")
ANNOUNCED = Path("/tmp/ray/ray_current_cluster")
RUNTIME_ENV = {"env_vars": {"OMP_NUM_THREADS": "7"}, "py_executable": "/no/such/python"}
OF_ANOTHER_CLUSTER = {
    "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": RUNTIME_ENV, "metadata": {}}),
    "RAY_RUNTIME_ENV_HOOK": "no.such.hook",
    "RAY_OVERRIDE_RESOURCES": '{"CPU": 0}',
    "RAY_REDIS_ADDRESS": "127.0.0.1:1",
    "RAY_GCS_SERVER_PORT": "1",
}
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of this process
]


class Cluster(NamedTuple):
    """A driver's own cluster, and keys of its environment by the variable's name."""

    folder: Path
    keys: dict[str, str]


def announced() -> str | None:
    return ANNOUNCED.read_text() if ANNOUNCED.exists() else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The commands of this file share it: to start Ray takes seconds of several cores.

    HOME cannot be written, as in a container that runs as another user. The working folder has
    files with the names of what a trial imports. The driver is a process of another cluster's job,
    and was started by uv.
    """
    keys, before = new_keys(), announced()
    session = Path(mkdtemp(prefix="k-", dir="/tmp"))  # short: Ray's sockets lie in it
    home = {"RAY_TMPDIR": str(session), "HOME": "/proc/nowhere"}
    with pytest.MonkeyPatch.context() as patch, with_figures([]):
        patch.delenv("RAY_ADDRESS", raising=False)
        for name, value in {**keys, **home, **OF_ANOTHER_CLUSTER}.items():
            patch.setenv(name, value)
        patch.setattr(uv_runtime_env_hook, "_get_uv_run_cmdline", lambda: ["uv", "run", "python"])
        for name in ("trainer", "numpy", "torch", "yaml"):
            (session / f"{name}.py").write_text("raise ImportError('the file of a user')")
        patch.chdir(session)
        with connection.cluster() as (folder, asked_to_stop):
            assert announced() == before
            patch.setattr(connection, "cluster", lambda: nullcontext((folder, asked_to_stop)))
            yield Cluster(folder, keys)
    assert not folder.exists()
    shutil.rmtree(session)


# The sweep


def words(folder: Path, *more: str) -> list[str]:
    changes = small.overrides(folder, "num_updates=30", "checkpoint_every=5", *more)
    return ["sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", *changes]


class Swept(NamedTuple):
    """A folder with a sweep that ran to its end, and what its command printed."""

    folder: Path
    said: str

    def record(self) -> Any:
        return json.loads((self.folder / "results/sweeps/main-micro.json").read_text())

    def losses(self) -> dict[str, float]:
        paths = self.folder.glob("results/trials/*/result.json")
        results = [json.loads(path.read_text()) for path in paths]
        return {result["trial_id"]: result["final_val_loss"] for result in results}


@pytest.fixture(scope="module")
def swept(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("swept")
    with redirect_stdout(StringIO()) as said:
        assert main(words(folder, "tracking=wandb")) == 0
    return Swept(folder, said.getvalue())


def test_a_sweep_runs_reports_and_is_done(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    for printed in (
        "4 stages, 8 microbatches  1F1B ",
        "AdamW: not enough data, against any schedule; ",  # of one seed
        "to settle it against ZB-V: pipegap sweep sweep=main scale=tiny",
        "delay_ef",
    ):
        assert printed in swept.said
    trials, record = {*swept.losses()}, swept.record()
    assert len(trials) == 4
    assert {*record["trials"]} == trials
    assert {*record["compared"]} < trials
    [longer] = trials - {*record["compared"]}
    results = swept.folder / "results"
    config = json.loads((results / "trials" / longer / "config.json").read_text())
    assert (config["num_updates"], config["seed"]) == (42, 0)  # 1.375 times 30, and rounded up
    before = {path: path.stat().st_mtime_ns for path in results.glob("trials/*/*")}
    assert main(words(swept.folder)) == 0
    assert "4 done, 0 to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in results.glob("trials/*/*")} == before
    assert main(words(swept.folder, "advice=null")) == 0
    assert {*swept.record()["trials"]} == trials, "other words are another request"
    record = json.loads((results / "sweeps" / "main-micro-2.json").read_text())
    assert {*record["trials"]} == trials - {longer}
    assert record["words"][-1] == "advice=null"
    assert all(trial["seconds"] is not None for trial in record["trials"].values())


def test_no_key_is_in_a_file_of_ray_or_of_the_store(swept: Swept, cluster: Cluster) -> None:
    """While the cluster runs: a killed driver leaves Ray's files as they are."""
    assert stat.S_IMODE(cluster.folder.stat().st_mode) == 0o700
    assert not leaks(cluster.keys, cluster.folder, swept.folder)


def test_a_failing_sweep_stops_tells_of_it_and_keeps_the_url(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in no file or output."""
    asked = [*words(tmp_path), "advice=null"]
    first, *others = plan_sweeps(parse_request(asked))[0].planned
    (first.folder / "metrics.jsonl").mkdir(parents=True)  # so that it cannot write its rows
    for trial in others:
        took = {"trial_id": trial.trial_id, "tokens_per_second": 9.0}
        leave_finished(trial.folder, trial.config, **took)
    with webhook.served() as server:
        assert main([*asked, "fail_fast=1", f"notify={server.url}"]) == 1
    said = capsys.readouterr()
    assert "stopped by fail_fast=1" in said.out
    assert " failed: file=" in said.out
    assert server.kinds()[-1] == "stopped"
    assert "metrics.jsonl" in "\n".join(line for post in server.posts for line in post["lines"])
    assert SECRET not in said.out + said.err
    for folder in (tmp_path, cluster.folder):
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not [content for content in files if SECRET.encode() in content]
    gc.collect()  # a stopped Tune leaves files open; here nobody minds


@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_stops_no_other(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The delayed arm cannot write its rows."""
    [plan] = plan_sweeps(parse_request(words(tmp_path)))
    broken = next(trial for trial in plan.planned if trial.arm == "delay")
    (broken.folder / "metrics.jsonl").mkdir(parents=True)
    assert main(words(tmp_path)) == 1
    printed = capsys.readouterr().out
    why = f"file={broken.folder / 'metrics.jsonl'}: "
    assert f" adamw delay seed 0: {why}" in printed  # where it ends, and at the end:
    assert f"1 of 4 failed: {why}" in printed.splitlines()[-2]
    result = json.loads((broken.folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert "metrics.jsonl" in result["error"]
    losses = Swept(tmp_path, "").losses()
    assert [trial_id for trial_id, loss in losses.items() if loss is None] == [broken.folder.name]


def test_a_first_trial_that_fails_is_one_line_and_nothing_begins(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_trial, "PRELOAD", [])  # what fails needs less
    missing = f"resume_from={tmp_path / 'checkpoint-1.pt'}"
    assert main([*words(tmp_path, missing), "advice=null", "first_trial=true"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"pipegap sweep: first trial: {missing}: must be a checkpoint-*.pt of an unfinished "
        "trial (first_trial=false begins the sweep without it)"
    ]
    assert not [*(tmp_path / "results").glob("trials/*")]
    assert not [*(tmp_path / "results").glob("*first-trial*")]


# The cluster


def of_processes(look: Callable[[psutil.Process], T]) -> list[T]:
    """What is seen at this driver and its processes, but at those that end meanwhile."""
    seen = []
    for process in (driver := psutil.Process(), *driver.children(recursive=True)):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            seen.append(look(process))
    return seen


def test_no_other_machine_reaches_it_and_its_processes_have_its_variables(cluster: Cluster) -> None:
    sockets = chain.from_iterable(of_processes(lambda process: process.net_connections("tcp")))
    servers = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert {address.removeprefix("::ffff:") for address in servers} == {"127.0.0.1"}
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.parent.parent == cluster.folder
    variables = ray.remote(lambda: dict(os.environ)).remote()
    assert connection.ENVIRONMENT.items() <= ray.get(variables, timeout=60).items()


def test_what_nobody_asks_is_not_started(cluster: Cluster) -> None:
    """And what is, is in no group with the driver, for which a signal of `timeout` is meant."""
    found = of_processes(lambda each: (" ".join(each.cmdline()), os.getpgid(each.pid)))
    parts = [command for command, _ in found if str(cluster.folder) in command]
    assert os.getpgrp() not in [group for command, group in found if command in parts]
    assert any("raylet" in part for part in parts)
    for unused in ("/dashboard.py", "/monitor.py", "/log_monitor.py"):
        assert not any(unused in part for part in parts), unused


def kill(flag: Any) -> None:
    pid = ray.get(flag.__ray_call__.remote(lambda self: os.getpid()), timeout=60)
    os.kill(pid, signal.SIGKILL)


def test_only_a_real_wish_stops(cluster: Cluster) -> None:
    """The flag's process is killed twice: before a wish to stop, and after it."""
    asked = False
    stop = StopWhenAsked(lambda: asked, {"one"})
    assert not stop_requested(stop.flag)
    kill(stop.flag)
    for _ in range(100):
        assert not stop_requested(stop.flag), "no wish, only a dead process"
        time.sleep(0.05)
    asked = True
    assert not stop.stop_all()
    deadline, killed = time.monotonic() + 120, False
    while not (killed and stop_requested(stop.flag)):
        assert time.monotonic() < deadline
        stop.stop_all()
        if not killed and stop_requested(stop.flag):
            kill(stop.flag)
            killed = True
        time.sleep(0.1)


def test_what_ray_reports_is_a_line_each_and_said_once(cluster: Cluster) -> None:
    gcs_client = ray._private.worker.global_worker.gcs_client
    deadline = time.monotonic() + 120
    with redirect_stderr(StringIO()) as said:
        for error in ("It is gone\nits log", "It is gone\nits log", "Another"):
            publish_error_to_driver("test", error, gcs_client=gcs_client)
        while "Another" not in said.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    lines = [line.partition(" (")[0] for line in said.getvalue().splitlines()]
    assert lines == ["Ray: It is gone", "Ray: Another"]
