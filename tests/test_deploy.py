"""What deploy/ holds fits Ray's schema, our own command line and the time that a stop takes."""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml

from pipegap.sweeps.cluster.package import STOP_WAIT, require_shared
from pipegap.sweeps.cluster.tune_hooks import GRACE
from pipegap.sweeps.request.command_line import parse_request
from pipegap.trainer.base.places import CODE_ROOT
from tests.support import small
from tests.support.ray_head import ended_by_mark, marked

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


def test_every_volume_of_the_rayjob_is_mounted_and_holds_the_store() -> None:
    for pod in pods():
        [container] = pod["containers"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        assert container["volumeMounts"][0]["mountPath"] == "/store"


SHIMS = {
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "scontrol": '[ "$1" = requeue ] && echo "$2" >"$REQUEUED" || echo "$3"',
    "hostname": "echo 127.0.0.1",
}
"""Slurm on one node: a step is a process, a requeue is noted."""


@pytest.mark.slow
def test_slurms_signal_makes_trials_save_and_the_job_wait_again(tmp_path: Path) -> None:
    for name, body in SHIMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    grid = ["grid.optimizer=[adamw]", "grid.optimizer.momentum=[0.9]", "seeds=[0]"]
    words = small.overrides(tmp_path, "num_updates=5000", "eval_every=2500")
    given = [word for word in words if not word.startswith("results=")]
    environment = marked(str(tmp_path)) | {
        "SHARED": str(tmp_path),
        "REQUEUED": str(tmp_path / "requeued"),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NODELIST": "node",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_ON_NODE": "2",
    }
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as environment["RAY_TMPDIR"],  # short: sockets
        ended_by_mark(str(tmp_path)),
        (tmp_path / "log").open("w") as log,
    ):
        script = subprocess.Popen(
            ["bash", str(DEPLOY / "slurm.sh"), "sweep=momentum", "scale=micro", *grid, *given],
            env=environment,
            cwd=CODE_ROOT,
            stdout=log,
            stderr=log,
        )
        deadline = time.monotonic() + 180
        while len(list(tmp_path.glob("results/trials/*/metrics.jsonl"))) < 2:
            assert script.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        script.send_signal(signal.SIGTERM)
        assert script.wait(timeout=120) == 143, (tmp_path / "log").read_text()
    ends = [json.loads(p.read_text()) for p in tmp_path.glob("results/trials/*/attempt-*.json")]
    assert [end["ended"] for end in ends] == ["Stopped"] * 2
    assert (tmp_path / "requeued").read_text().split() == [str(os.getpid())]


def test_slurm_asks_early_enough() -> None:
    script = (DEPLOY / "slurm.sh").read_text()
    [seconds] = re.findall(r"^#SBATCH --signal=B:TERM@(\d+)$", script, re.MULTILINE)
    assert int(seconds) >= GRACE + 30
