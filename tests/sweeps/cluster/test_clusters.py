"""A sweep as a job of a Ray cluster: sent once, followed, stopped, gone on with."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipegap.sweeps.cluster.package import code_digest
from tests.support import small
from tests.support.ray_head import TOKEN, head

pytestmark = pytest.mark.slow
KEY = "a-key-that-must-not-travel"


class Cluster:
    """Commands of a user of the cluster, whose store is `folder`."""

    def __init__(self, environment: dict[str, str], files: Path, folder: Path) -> None:
        self.environment, self.files, self.folder = environment, files, folder
        words = small.overrides(folder, "num_updates=3000", "eval_every=1500")
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
        return subprocess.run(
            [sys.executable, "-m", "pipegap", *words],
            env={**self.environment, **changed},
            text=True,
            capture_output=True,
            check=False,
        )

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


def test_without_its_token_a_sweep_is_told_so_in_a_line(cluster: Cluster) -> None:
    where = (cluster.files / "ray_current_cluster").read_text()
    words = [*cluster.words, "seeds=[1]"]  # which no other test runs
    joined = cluster.run("sweep", *words, RAY_ADDRESS=where, RAY_AUTH_TOKEN="another one")
    assert joined.returncode == 1
    [line] = joined.stderr.splitlines()
    assert "Ray does not start or answer" in line
    assert "token is missing or incorrect" in line


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


def test_a_job_of_bad_input_ends_as_the_command_does(cluster: Cluster) -> None:
    refused = cluster.submit("optimizer.lr=-1")
    assert refused.returncode == 2
    [line] = [line for line in refused.stdout.splitlines() if line.startswith("pipegap sweep:")]
    assert "optimizer.lr=-1" in line


def test_the_code_arrives_and_nothing_else(cluster: Cluster) -> None:
    [arrived] = cluster.files.glob("session_latest/runtime_resources/working_dir_files/*/")
    assert {path.name for path in arrived.iterdir()} - {"__pycache__"} == {"pipegap"}
    assert code_digest(arrived) == code_digest()


def test_no_key_is_in_what_the_cluster_tells_of_a_job(cluster: Cluster) -> None:
    import requests

    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = cluster.environment["RAY_API_SERVER_ADDRESS"]
    told = requests.get(f"{address}/api/jobs/", headers=headers, timeout=30).text
    assert "momentum-micro" in told
    assert '"WANDB_PROJECT": "told"' in told
    assert KEY not in told
    assert TOKEN not in told


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
