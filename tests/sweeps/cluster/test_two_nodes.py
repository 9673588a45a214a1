"""A gang whose ranks lie on two nodes trains as one process does."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipegap.analysis import load
from pipegap.sweeps.cluster.gang import by_node
from tests.support import small
from tests.support.two_nodes import two_nodes

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
    words = small.overrides(tmp_path, *STAGES)
    apart = [w for w in words if not w.startswith("results=")]
    sweep = ["-m", "pipegap", "sweep", *SWEEP]
    gang = (f"results={tmp_path / 'apart'}", "runner=pipelined", "num_threads=1")
    with two_nodes(num_cpus=2) as run:
        done = run(*sweep, *apart, *gang)
    assert done.returncode == 0, done.stdout + done.stderr
    alone = subprocess.run([sys.executable, *sweep, *words], check=False, capture_output=True)
    assert alone.returncode == 0, alone.stderr
    assert losses(tmp_path / "apart") == losses(tmp_path / "results")
    assert len(losses(tmp_path / "results")) == 3
