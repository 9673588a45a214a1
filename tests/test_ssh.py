"""deploy/ray-cluster.yaml by the real `ray up`, on machines that only SSH reaches."""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegap.trainer.base.places import CODE_ROOT
from tests.support import small_sweep
from tests.support.clusters import ADDRESSES, machines


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
    with (
        tempfile.TemporaryDirectory(prefix="ssh-") as name,
        machines(folder := Path(name)) as here,
    ):

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
