"""What deploy/ holds fits Ray's schema, our own command line and the time that a stop takes."""

import json
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

from pipegap.sweeps.cluster.driver import GRACE
from pipegap.sweeps.cluster.jobs import STOP_WAIT, require_shared
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.places import CODE_ROOT
from tests.support import small_sweep
from tests.support.clusters import ADDRESSES, machines, slurm

DEPLOY = CODE_ROOT / "deploy"


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def test_a_stopped_job_has_time_to_save() -> None:
    assert STOP_WAIT >= GRACE + 30


def test_the_cluster_launcher_fits_rays_schema() -> None:
    schema = Path(ray.autoscaler.__path__[0]) / "ray-schema.json"
    cluster = load("ray-cluster.yaml")
    jsonschema.validate(cluster, json.loads(schema.read_text()))
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token" in cluster[commands][-1]


def pods() -> list[dict[str, Any]]:
    cluster = load("rayjob.yaml")["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def test_the_rayjob_runs_a_sweep_that_can_be_a_job() -> None:
    job = load("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:5] == ["exec", "python", "-m", "pipegap", "sweep"]
    require_shared(parse_request(words[5:]))
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == ray.__version__
    assert job["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_the_rayjobs_pods_live_until_the_sweep_has_stopped() -> None:
    spec = load("rayjob.yaml")["spec"]
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert int(variables["RAY_JOB_STOP_WAIT_TIME_S"]) == STOP_WAIT
    head, worker = pods()
    assert min(pod["terminationGracePeriodSeconds"] for pod in (head, worker)) > STOP_WAIT
    [asks], [waits] = (pod["containers"] for pod in (head, worker))
    assert asks["lifecycle"]["preStop"]["exec"]["command"][-1] == spec["jobId"]
    assert int(waits["lifecycle"]["preStop"]["exec"]["command"][1]) >= STOP_WAIT


@pytest.mark.parametrize("wrong", [{}, {"restartPolic": "Never"}])
def test_the_rayjobs_pods_fit_kubernetes_schema(wrong: dict[str, str]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    refused = pytest.raises(kubernetes.ValidationError) if wrong else nullcontext()
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}}
    for pod in pods():
        whole = {**kind, "spec": pod | wrong}
        with refused:
            kubernetes.validate(whole, kubernetes.latest_version(), strict=True)


def test_every_volume_of_the_rayjob_is_mounted_and_holds_the_store() -> None:
    for pod in pods():
        [container] = pod["containers"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert container["volumeMounts"][0]["mountPath"] == "/store"


@pytest.mark.slow
def test_slurm_runs_a_sweep_on_two_nodes_over_a_signal_and_the_end_of_its_time() -> None:
    """By the real sbatch: whoever signals the job, and its limit of time, make trials save and the
    job wait again. The next run goes on, on both nodes; a short sweep ends."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, slurm(folder := Path(name)) as run:

        def submitted(store: str, num_updates: int) -> str:
            length = (f"num_updates={num_updates}", f"eval_every={num_updates}")
            words = [
                w for w in small_sweep.overrides(folder, *length) if not w.startswith("results=")
            ]
            grid = ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "seeds=[0]"]
            options = ["--parsable", "--nodes=2", f"--chdir={CODE_ROOT}", f"--output={folder}/log"]
            script = ["deploy/slurm.sh", "sweep=momentum", "scale=micro", *grid, *words]
            return run("env", f"SHARED={folder / store}", "sbatch", *options, *script).strip()

        def state(job: str) -> str:
            shown = run("scontrol", "show", "job", "--oneliner", job)
            return re.findall(r"JobState=(\w+)", shown)[0]

        def until(holds: Callable[[], bool]) -> None:
            deadline = time.monotonic() + 150
            while not holds():
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)

        def read(pattern: str) -> list[dict[str, Any]]:
            return [json.loads(path.read_text()) for path in sorted(folder.glob(pattern))]

        def attempts(number: int) -> list[dict[str, Any]]:
            every = read("long/results/trials/*/attempt-*.json")
            return [attempt for attempt in every if attempt["attempt"] == number]

        def run_again(job: str, limit: int) -> None:
            run("scontrol", "update", f"JobId={job}", "StartTime=now", f"TimeLimit={limit}")
            until(lambda: state(job) == "RUNNING")

        job = submitted("long", 200_000)
        until(lambda: len([*folder.glob("long/results/trials/*/metrics.jsonl")]) == 2)
        run("scancel", "--batch", "--signal=TERM", job)
        until(lambda: state(job) == "PENDING")
        first = attempts(1)
        assert [attempt["ended"] for attempt in first] == ["Stopped"] * 2
        assert {attempt["host"] for attempt in first} == {"n1", "n2"}
        run_again(job, limit=2)
        until(lambda: state(job) == "PENDING")  # a minute before the end of its time
        second = attempts(2)
        assert [attempt["ended"] for attempt in second] == ["Stopped"] * 2
        assert all(attempt["from_update"] > 0 for attempt in second)
        run("scancel", job)
        job = submitted("short", 20)
        until(lambda: state(job) == "COMPLETED")
        results = read("short/results/trials/*/result.json")
        assert [result["status"] for result in results] == ["completed"] * 2


def test_slurm_asks_early_enough() -> None:
    script = (DEPLOY / "slurm.sh").read_text()
    [seconds] = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", script, re.MULTILINE)
    assert int(seconds) >= GRACE + 30


# Ray's file by the real `ray up`, on machines that only SSH reaches.


def filled_in(shared: Path) -> str:
    """The file for two machines of one core each, as its comment says."""
    text = re.sub(r"^#.*\n", "", (CODE_ROOT / "deploy/ray-cluster.yaml").read_text(), flags=re.M)
    head, worker = ADDRESSES.values()
    replaced = {"HEAD": head, "WORKER_1, WORKER_2": worker, "max_workers: 2": "max_workers: 1"}
    replaced |= {"USER": "root", "REPOSITORY": str(CODE_ROOT), "SHARED": str(shared)}
    replaced |= {"ray start": "ray start --num-cpus=1"}
    for word, own in replaced.items():
        assert word in text
        text = re.sub(rf"\b{word}\b", own, text)
    return text


@pytest.mark.slow
def test_a_sweep_on_machines_with_ssh_outlives_the_loss_of_one() -> None:
    """Both run trials. Of the trial on the machine that is lost, nothing before its last checkpoint
    is done again."""
    with tempfile.TemporaryDirectory(prefix="ssh-") as name, machines(folder := Path(name)) as here:

        def until(holds: Callable[[], object]) -> None:
            deadline = time.monotonic() + 150
            while not holds():
                assert time.monotonic() < deadline, here.said.read_text()
                time.sleep(0.2)

        def attempts(number: int) -> list[tuple[Path, dict[str, Any]]]:
            found = folder.glob(f"results/trials/*/attempt-{number:06d}.json")
            whole = [(path, text) for path in found if (text := path.read_text())]
            return [(path, json.loads(text)) for path, text in whole]

        def checkpoints(trial: Path) -> list[int]:
            return [int(path.name.split("-")[1]) for path in trial.glob("checkpoint-*.pt")]

        (cluster := folder / "cluster.yaml").write_text(filled_in(folder))
        here.run("ray", "get-auth-token", "--generate")
        here.run("ray", "up", "-y", cluster)
        nodes = folder / "pipea/ray/cluster-pipegap.state"
        until(lambda: nodes.read_text().count("up-to-date") == 2)
        status = "ray", "exec", cluster, "ray status"
        until(lambda: "2 local.cluster.node" in here.run(*status))  # which hears of nodes later
        words = ["sweep=momentum", "scale=micro", "grid.optimizer=[adamw]", "seeds=[0]"]
        words += ["grid.optimizer.momentum=[0.9]", "address=http://localhost:8265"]
        length = ("num_updates=1000", "eval_every=1000")
        with here.start("ray", "dashboard", cluster) as forwarding:
            connect = ["bash", "-c", "</dev/tcp/localhost/8265"]
            until(lambda: here.start(*connect).wait() == 0)
            job = here.start("pipegap", "submit", *words, *small_sweep.overrides(folder, *length))
            until(lambda: {a["host"] for _, a in attempts(1)} == {*ADDRESSES})
            [lost] = [path for path, attempt in attempts(1) if attempt["host"] == "pipeb"]
            until(lambda: checkpoints(lost.parent))
            here.lose(1)
            kept = max(checkpoints(lost.parent))
            # After a minute without a heartbeat others may take the trial: as if it were over.
            until(lambda: os.utime(lost, (0, 0)) or attempts(2))
            assert job.wait() == 0, here.said.read_text()
            forwarding.kill()
        [(_, second)] = attempts(2)
        assert (second["host"], second["from_update"] >= kept) == ("pipea", True)
        results = [json.loads(p.read_text()) for p in folder.glob("results/trials/*/result.json")]
        assert [result["status"] for result in results] == ["completed"] * 2
        here.run("ray", "down", "-y", cluster)
        ours = ["pgrep", "--full", f"gcs_server.*{folder}"]
        assert subprocess.run(ours, check=False, stdout=subprocess.DEVNULL).returncode == 1
