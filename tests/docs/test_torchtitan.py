"""docs/torchtitan.md in torchtitan's own Trainer, which lives in an environment of its own."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.markdown import ROOT

OWN = ROOT / ".venv" / "torchtitan" / "bin" / "python"


pytestmark = pytest.mark.slow


PARSE = "from torchtitan.config import ConfigManager as C; print(C().parse_args())"


@pytest.fixture(scope="module")
def python() -> str:
    """The interpreter that has torchtitan."""
    found = sys.executable if find_spec("torchtitan") else str(OWN)
    if not Path(found).exists():
        pytest.skip("no torchtitan: make torchtitan")
    return found


@pytest.mark.parametrize("page", ["advise", "torchtitan"])
def test_its_options_are_those_that_the_pages_name(python: str, page: str) -> None:
    """Each is read by torchtitan; the model is that of docs/torchtitan.md."""
    given = ["--module", "llama3", "--config", "llama3_debugmodel"]
    for option in re.findall(r"--[a-z]+\.\S+(?: [\w.]+)?", (ROOT / f"docs/{page}.md").read_text()):
        given += option.strip("`|").split()
    assert len(given) > 6
    read = subprocess.run(
        [python, "-c", PARSE, *given], capture_output=True, text=True, check=False
    )
    assert read.returncode == 0, read.stderr
    assert "pipeline_parallel_schedule='2BW'" in read.stdout or page == "advise"


@pytest.fixture(scope="module")
def losses(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The losses of each way of training."""
    folder = tmp_path_factory.mktemp("torchtitan")
    words = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "tests.support.torchtitan_run", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def test_2bw_has_the_losses_of_the_delayed_optimizers(losses: dict[str, Any]) -> None:
    for kind in ("training", "validation"):
        expected = losses["emulated"][kind]
        assert losses["pipelined"][kind] == pytest.approx(expected, rel=0, abs=5e-6)
        assert len({*expected}) == len(expected)


def test_a_checkpoint_goes_on(losses: dict[str, Any]) -> None:
    for way in ("emulated", "pipelined"):
        assert losses[f"{way}, resumed"]["training"] == losses[way]["training"][3:]


def test_what_cannot_be_is_refused_in_a_line(losses: dict[str, Any]) -> None:
    experts, accumulated, other = losses["refused"]
    assert "load_balance_coeff=0.001: must be None with 2BW" in experts
    assert "training.global_batch_size=8: must be -1, one step per batch" in accumulated
    assert "parallelism.pipeline_parallel_schedule=1F1B: must be 2BW here" in other
    assert not any("\n" in said for said in losses["refused"])
