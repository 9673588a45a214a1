"""2BW in Megatron-LM's own training loop: docs/megatron.md's script, on CPUs over gloo."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.markdown import ROOT
from tests.trainer.megatron.test_megatron_2bw import interpreter

pytestmark = pytest.mark.slow
CHECKOUT = os.environ.get("MEGATRON_LM", "")


def losses(folder: Path, way: str, *options: str) -> Any:
    """Of training and of validation, of pretrain_gpt.py."""
    words = [interpreter(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words += ["-m", "tests.support.megatron_lm", str(folder), way, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads((folder / f"{way}.json").read_text())


@pytest.mark.skipif(not CHECKOUT, reason="no checkout of Megatron-LM in MEGATRON_LM: core_v0.16.1")
def test_the_loop_of_megatron_lm_trains_by_2bw(tmp_path: Path) -> None:
    """To the losses of `DelayedSteps` in its 1F1B, also when it saved, stopped and went on."""
    whole, delayed = losses(tmp_path, "2BW"), losses(tmp_path, "delayed")
    assert whole["training"] == delayed["training"]
    assert whole["validation"] == pytest.approx(delayed["validation"], rel=0, abs=2e-6)
    saved = "--save", str(tmp_path / "saved"), "--save-interval", "3"
    first = losses(tmp_path, "2BW", *saved, "--exit-interval", "3")
    rest = losses(tmp_path, "2BW", "--load", str(tmp_path / "saved"))
    assert first["training"] + rest["training"] == whole["training"]
    assert len({*whole["training"]}) == 6
