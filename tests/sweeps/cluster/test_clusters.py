"""A sweep as a job of a Ray cluster: sent once, followed, stopped, gone on with."""

import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
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

from pipegap.analysis import load
from pipegap.sweeps.__main__ import main
from pipegap.sweeps.cluster import connection, first_trial
from pipegap.sweeps.cluster.driver import StopWhenAsked
from pipegap.sweeps.cluster.gang import by_node
from pipegap.sweeps.cluster.jobs import code_digest
from pipegap.sweeps.cluster.stop_flag import stop_requested
from pipegap.sweeps.plan.sweep_plan import plan_sweeps
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.errors import Status
from tests.support import small_sweep, tracked
from tests.support.clusters import TOKEN, head, two_nodes
from tests.support.own_files import leaks, new_keys
from tests.support.pages import with_figures
from tests.support.processes import python
from tests.support.small_sweep import END_TIMEOUT, SmallSweep
from tests.support.tracked import SECRET
from tests.support.trials import leave_finished, wait_for

KEY = "a-key-that-must-not-travel"


class Cluster:
    """Commands of a user of the cluster, whose store is `folder`."""

    def __init__(self, environment: dict[str, str], files: Path, folder: Path) -> None:
        self.environment, self.files, self.folder = environment, files, folder
        words = small_sweep.overrides(folder, "num_updates=3000", "eval_every=1500")
        grid = ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "seeds=[0]"]
        self.words = ["sweep=momentum", "scale=micro", *grid, *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pipegap", *words],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "pipegap", *words, env={**self.environment, **changed})

    def submit(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit", *self.words, *words)

    def read(self, pattern: str) -> list[dict[str, Any]]:
        paths = sorted(self.folder.glob(f"results/trials/*/{pattern}"))
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with head() as (environment, files):
        environment |= {"WANDB_API_KEY": KEY, "WANDB_PROJECT": "told"}
        made = Cluster(environment, files, tmp_path_factory.mktemp("cluster"))
        made.submit("optimizer.lr=-2")  # a job that ends at once, whichever test comes first
        yield made


def await_updates(cluster: Cluster, follower: subprocess.Popen[str]) -> None:
    """Until both trials train."""
    deadline = time.monotonic() + 120
    while len(list(cluster.folder.glob("results/trials/*/metrics.jsonl"))) < 2:
        assert follower.poll() is None, follower.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_without_its_token_a_sweep_is_told_so_in_a_line(cluster: Cluster) -> None:
    where = (cluster.files / "ray_current_cluster").read_text()
    words = [*cluster.words, "seeds=[1]"]  # which no other test runs
    joined = cluster.run("sweep", *words, RAY_ADDRESS=where, RAY_AUTH_TOKEN="another one")
    assert joined.returncode == 1
    [line] = joined.stderr.splitlines()
    assert "Ray does not start or answer" in line
    assert "token is missing or incorrect" in line


@pytest.mark.slow
def test_one_job_from_submission_to_result(cluster: Cluster) -> None:
    """Ctrl-C detaches, the same words find the job, `stop` saves, a new attempt goes on to the end,
    and then the same words start nothing more."""
    follower = cluster.start("submit", *cluster.words)
    assert follower.stdout is not None
    job = follower.stdout.readline().split()[1].rstrip(":")
    while "Running entrypoint" not in follower.stdout.readline():
        assert follower.poll() is None
    follower.send_signal(signal.SIGINT)
    said, complained = follower.communicate()
    assert follower.returncode == 130, complained
    assert f"stop {job}" in said.splitlines()[-1]

    found = cluster.submit("follow=false")
    assert (found.returncode, found.stdout) == (0, f"job {job}: submitted before, running\n")

    follower = cluster.start("submit", *cluster.words)
    await_updates(cluster, follower)
    stopped = cluster.run("stop", job)
    assert stopped.returncode == 0, stopped.stderr
    assert f"job {job}: stopped" in stopped.stdout
    assert "save a checkpoint" in follower.communicate()[0]
    assert follower.returncode == 143
    assert [a["ended"] for a in cluster.read("attempt-*.json")] == ["Stopped"] * 2
    assert not cluster.read("result.json")
    assert len(list(cluster.folder.glob("results/trials/*/checkpoint*"))) == 2

    done = cluster.submit()
    assert done.returncode == 0, done.stderr
    assert "2/2 completed" in done.stdout
    attempts = cluster.read("attempt-000002.json")
    assert [a["ended"] for a in attempts] == ["completed"] * 2
    assert all(a["from_update"] > 0 for a in attempts)
    assert all(result["git"] for result in cluster.read("result.json"))

    again = cluster.submit()
    assert again.returncode == 0
    assert again.stdout.startswith(f"job {job[:-1]}2: submitted before, succeeded\n")
    assert len(cluster.read("attempt-*.json")) == 4

    jobs = [line.split()[:2] for line in cluster.run("jobs").stdout.splitlines()]
    assert [line for line in jobs if line[0].startswith(job[:-1])] == [
        [job, "STOPPED"],
        [f"{job[:-1]}2", "SUCCEEDED"],
    ]


@pytest.mark.slow
def test_a_job_of_bad_input_ends_as_the_command_does(cluster: Cluster) -> None:
    refused = cluster.submit("optimizer.lr=-1")
    assert refused.returncode == 2
    [line] = [line for line in refused.stdout.splitlines() if line.startswith("pipegap sweep:")]
    assert "optimizer.lr=-1" in line


@pytest.mark.slow
def test_the_code_arrives_and_nothing_else(cluster: Cluster) -> None:
    [arrived] = cluster.files.glob("session_latest/runtime_resources/working_dir_files/*/")
    assert {path.name for path in arrived.iterdir()} - {"__pycache__"} == {"pipegap"}
    assert code_digest(arrived) == code_digest()


@pytest.mark.slow
def test_no_key_is_in_what_the_cluster_tells_of_a_job(cluster: Cluster) -> None:
    import requests

    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = cluster.environment["RAY_API_SERVER_ADDRESS"]
    told = requests.get(f"{address}/api/jobs/", headers=headers, timeout=30).text
    assert "momentum-micro" in told
    assert '"WANDB_PROJECT": "told"' in told
    assert KEY not in told
    assert TOKEN not in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"RAY_AUTH_TOKEN": "another"}, "RAY_AUTH_TOKEN"),
        ({"RAY_AUTH_TOKEN": "", "HOME": "/nowhere"}, "RAY_AUTH_TOKEN"),
        ({"RAY_API_SERVER_ADDRESS": "http://127.0.0.1:1"}, "address=http://127.0.0.1:1"),
        ({"RAY_API_SERVER_ADDRESS": "nowhere"}, "address=nowhere"),
    ],
)
def test_a_cluster_that_cannot_be_talked_to(
    cluster: Cluster, changed: dict[str, str], says: str
) -> None:
    refused = cluster.run("jobs", **changed)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert says in refused.stderr
    assert TOKEN not in refused.stderr


# A driver's own cluster: a sweep runs and is done, no file has a key, a wish to stop is heard.

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


class ClusterOfOwnCluster(NamedTuple):
    """A driver's own cluster, and keys of its environment by the variable's name."""

    folder: Path
    keys: dict[str, str]


def on_own_cluster(test: T) -> T:
    """A test of it is long, and Ray warns."""
    return pytest.mark.long(pytest.mark.filterwarnings("ignore")(test))


def announced() -> str | None:
    return ANNOUNCED.read_text() if ANNOUNCED.exists() else None


@pytest.fixture(scope="module")
def cluster_of_own_cluster() -> Iterator[ClusterOfOwnCluster]:
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
            yield ClusterOfOwnCluster(folder, keys)
    assert not folder.exists()
    shutil.rmtree(session)


# The sweep


def words(folder: Path, *more: str) -> list[str]:
    changes = small_sweep.overrides(folder, "num_updates=30", "checkpoint_every=5", *more)
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
def swept(
    cluster_of_own_cluster: ClusterOfOwnCluster, tmp_path_factory: pytest.TempPathFactory
) -> Swept:
    folder = tmp_path_factory.mktemp("swept")
    with redirect_stdout(StringIO()) as said:
        assert main(words(folder, "tracking=wandb")) == 0
    return Swept(folder, said.getvalue())


@on_own_cluster
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


@on_own_cluster
def test_no_key_is_in_a_file_of_ray_or_of_the_store(
    swept: Swept, cluster_of_own_cluster: ClusterOfOwnCluster
) -> None:
    """While the cluster runs: a killed driver leaves Ray's files as they are."""
    assert stat.S_IMODE(cluster_of_own_cluster.folder.stat().st_mode) == 0o700
    assert not leaks(cluster_of_own_cluster.keys, cluster_of_own_cluster.folder, swept.folder)


@on_own_cluster
def test_a_failing_sweep_stops_tells_of_it_and_keeps_the_url(
    cluster_of_own_cluster: ClusterOfOwnCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in no file or output."""
    asked = [*words(tmp_path), "advice=null"]
    first, *others = plan_sweeps(parse_request(asked))[0].planned
    (first.folder / "metrics.jsonl").mkdir(parents=True)  # so that it cannot write its rows
    for trial in others:
        took = {"trial_id": trial.trial_id, "tokens_per_second": 9.0}
        leave_finished(trial.folder, trial.config, **took)
    with tracked.served() as server:
        assert main([*asked, "fail_fast=1", f"notify={server.url}"]) == 1
    said = capsys.readouterr()
    assert "stopped by fail_fast=1" in said.out
    assert " failed: file=" in said.out
    assert server.kinds()[-1] == "stopped"
    assert "metrics.jsonl" in "\n".join(line for post in server.posts for line in post["lines"])
    assert SECRET not in said.out + said.err
    for folder in (tmp_path, cluster_of_own_cluster.folder):
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        assert not [content for content in files if SECRET.encode() in content]
    gc.collect()  # a stopped Tune leaves files open; here nobody minds


@on_own_cluster
@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_stops_no_other(
    cluster_of_own_cluster: ClusterOfOwnCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


@on_own_cluster
def test_a_first_trial_that_fails_is_one_line_and_nothing_begins(
    cluster_of_own_cluster: ClusterOfOwnCluster,
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


@on_own_cluster
def test_no_other_machine_reaches_it_and_its_processes_have_its_variables(
    cluster_of_own_cluster: ClusterOfOwnCluster,
) -> None:
    sockets = chain.from_iterable(of_processes(lambda process: process.net_connections("tcp")))
    servers = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert {address.removeprefix("::ffff:") for address in servers} == {"127.0.0.1"}
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.parent.parent == cluster_of_own_cluster.folder
    variables = ray.remote(lambda: dict(os.environ)).remote()
    assert connection.ENVIRONMENT.items() <= ray.get(variables, timeout=60).items()


@on_own_cluster
def test_what_nobody_asks_is_not_started(cluster_of_own_cluster: ClusterOfOwnCluster) -> None:
    """And what is, is in no group with the driver, for which a signal of `timeout` is meant."""
    found = of_processes(lambda each: (" ".join(each.cmdline()), os.getpgid(each.pid)))
    parts = [command for command, _ in found if str(cluster_of_own_cluster.folder) in command]
    assert os.getpgrp() not in [group for command, group in found if command in parts]
    assert any("raylet" in part for part in parts)
    for unused in ("/dashboard.py", "/monitor.py", "/log_monitor.py"):
        assert not any(unused in part for part in parts), unused


def kill(flag: Any) -> None:
    pid = ray.get(flag.__ray_call__.remote(lambda self: os.getpid()), timeout=60)
    os.kill(pid, signal.SIGKILL)


@on_own_cluster
def test_only_a_real_wish_stops(cluster_of_own_cluster: ClusterOfOwnCluster) -> None:
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


@on_own_cluster
def test_what_ray_reports_is_a_line_each_and_said_once(
    cluster_of_own_cluster: ClusterOfOwnCluster,
) -> None:
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


# A gang whose ranks lie on two nodes trains as one process does.

SWEEP = ("sweep=main", "scale=micro", "seeds=[0]", "grid.optimizer=[adamw]", "advice=null")
STAGES = ("pipeline.num_stages=4", "pipeline.num_microbatches=4", "model.num_layers=4")


def losses(results: Path) -> dict[str, float]:
    trials = load(results)
    assert (trials["status"] == "completed").all()
    return dict(zip(trials["arm"], trials["final_val_loss"], strict=True))


def test_ranks_of_a_node_come_one_after_the_other() -> None:
    assert by_node(["b", "a", "b", "c", "a", "b"]) == [0, 2, 5, 1, 4, 3]
    assert by_node(["a"] * 3) == [0, 1, 2]


@pytest.mark.slow
def test_a_gang_of_four_over_two_nodes(tmp_path: Path) -> None:
    """A node has cores for two of the four ranks. Nobody tells the ranks which interface leads to
    the other node; by the host's name they would listen on loopback."""
    words = small_sweep.overrides(tmp_path, *STAGES)
    apart = [w for w in words if not w.startswith("results=")]
    sweep = ["-m", "pipegap", "sweep", *SWEEP]
    gang = (f"results={tmp_path / 'apart'}", "runner=pipelined", "num_threads=1")
    with two_nodes(num_cpus=2) as run:
        done = run(*sweep, *apart, *gang)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = python(*sweep, *words)
    assert alone.returncode == 0, alone.stderr
    assert losses(tmp_path / "apart") == losses(tmp_path / "results")
    assert len(losses(tmp_path / "results")) == 3


# Four drivers share a store while one is killed and clocks differ: each trial completes once.

NUM_TRIALS = 3 * 4
CLOCK = "import time\nclock = time.time\ntime.time = lambda: clock() + 86400\n"
"""The clock of a machine that is a day ahead."""


@pytest.mark.slow
def test_the_others_take_over_what_a_killed_driver_held(tmp_path: Path) -> None:
    words = small_sweep.overrides(
        tmp_path, "seeds=[0,1,2,3]", "num_updates=200", "checkpoint_every=20"
    )
    words.append("advice=null")  # which would ask for longer runs too
    words = [word for word in words if not word.startswith("results=")]
    drivers = [SmallSweep(tmp_path, words) for _ in range(4)]
    killed, *others = drivers
    with killed.start() as victim:
        wait_for(lambda: _runs_a_trial(killed), END_TIMEOUT)
        (tmp_path / "sitecustomize.py").write_text(CLOCK)
        ahead, *rest = others
        started = [ahead.start(PYTHONPATH=str(tmp_path)), *(driver.start() for driver in rest)]
        wait_for(lambda: _num_started(killed) >= 4, END_TIMEOUT)
        victim.send_signal(signal.SIGKILL)
    for process in started:
        said, _ = process.communicate(timeout=END_TIMEOUT)
        assert process.returncode == 0, said
    attempts = killed.attempts()
    assert len(attempts) == NUM_TRIALS
    for of_trial in attempts.values():
        trained = [attempt.get("ended") for attempt in of_trial if "from_update" in attempt]
        assert trained.count(Status.COMPLETED) == 1
        assert trained[-1] == Status.COMPLETED
    # A trial that sees its driver die saves a checkpoint, unless it is killed with it.
    unfinished = [
        attempt
        for of_trial in attempts.values()
        for attempt in of_trial
        if attempt.get("ended") in (None, "Stopped")
    ]
    assert unfinished, "the killed driver held a trial"
    assert len({attempt["pid"] for attempt in unfinished}) <= 2, "nobody else's ended before"


def _num_started(sweep: SmallSweep) -> int:
    return len([*sweep.folder.glob("results/trials/*/attempt-000001.json")])


def _runs_a_trial(sweep: SmallSweep) -> bool:
    return bool(sweep.processes("trial")) and _num_started(sweep) > 0
