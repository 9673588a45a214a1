"""How a test asks a process with a fake GPU: torch must find fake hooks when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pipegap.trainer.base.places import CONF
from tests.support.fake_cuda.child import compiler
from tests.support.small_sweep import later_wins

ROOT = Path(__file__).parents[3]
needs_fake_gpu = pytest.mark.skipif(
    compiler() is None or torch.version.cuda is not None,
    reason="a fake GPU takes a C++ compiler and a torch without CUDA",
)
SMALL = (
    *("model=nano", "model.num_layers=1", "batch_size=2", "seq_len=16"),
    *("pipeline=pipedream_2bw", "dtype=bfloat16", "eval_dtype=bfloat16"),
)


def choices(group: str) -> list[str]:
    """The names in a folder of conf/."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def small(*words: str) -> list[str]:
    """The words of a small trial with a delay; of two with one key the later one wins."""
    return later_wins((*SMALL, *words))


def answers(config: pytest.Config, questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts that a process with a fake GPU finds, one answer per question: see `child`."""
    cache = config.cache.mkdir("fake_cuda")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fake_cuda.child", str(cache)],
        input="".join(f"{json.dumps(question)}\n" for question in questions),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_planned(facts: dict[str, Any], rel: float) -> None:
    """Nothing failed, and the peak is what a plan says, but for a share."""
    assert facts["error"] is None, facts["error"]
    assert facts["planned"] == pytest.approx(max(facts["peaks"].values()), rel=rel)


def require_sound(facts: dict[str, Any]) -> None:
    """Nothing failed, no operation mixes devices, none raises under deterministic algorithms, and
    the host waits for the device once per update. The first update also makes the states."""
    assert facts["error"] is None, facts["error"]
    assert not facts["mixed"]
    assert not facts["refused"]
    later = {part: of for part, of in facts["waits"].items() if part.startswith("update")}
    assert len(later) > 1
    assert {part: of for part, of in later.items() if sum(of.values()) > 1}.keys() <= {"update 0"}
