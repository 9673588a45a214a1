"""What only a GPU can show: the same trial there, in bf16, compiled, with a fused optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import small
from tests.support.every_optimizer import NAMES
from tests.support.trials import ASYNC, untimed
from trainer.trial import run_trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible to torch"),
]


def test_a_gpu_gives_the_cpu_s_losses(tmp_path: Path) -> None:
    cpu = run_trial(small.config(tmp_path, *ASYNC))
    gpu = run_trial(small.config(tmp_path, *ASYNC, "device=cuda"))
    assert gpu["final_val_loss"] == pytest.approx(cpu["final_val_loss"], rel=1e-4)


@pytest.mark.parametrize("optimizer", NAMES)
def test_the_same_numbers_twice(tmp_path: Path, optimizer: str) -> None:
    delayed = ("pipeline=pipedream_2bw", "diagnostics=5")
    words = (*delayed, f"optimizer={optimizer}", "device=cuda", "dtype=bfloat16")
    one, two = (
        run_trial(small.config(tmp_path, *words, f"out={tmp_path / name}")) for name in "ab"
    )
    assert untimed(one) == untimed(two)


def test_fused_and_compiled(tmp_path: Path) -> None:
    words = (*ASYNC, "device=cuda", "dtype=bfloat16")
    plain = run_trial(small.config(tmp_path, *words))
    fast = run_trial(small.config(tmp_path, *words, "optimizer.fused=true", "compile=true"))
    assert fast["final_val_loss"] == pytest.approx(plain["final_val_loss"], rel=1e-2)


@pytest.mark.parametrize("p", [1, 2])
def test_the_true_pipeline_gives_the_emulation_s_numbers(tmp_path: Path, p: int) -> None:
    """By NCCL, which takes one rank per GPU; with one rank its sums are over that rank alone."""
    if torch.cuda.device_count() < p:
        pytest.skip(f"{p} ranks need {p} GPUs")
    stages = (f"pipeline.num_stages={p}", "pipeline.num_microbatches=2", "device=cuda")
    emulated = run_trial(small.config(tmp_path, *ASYNC, *stages))
    words = ("runner=pipelined", "trace=true")
    pipelined = run_trial(small.config(tmp_path, *ASYNC, *stages, *words))
    assert pipelined["final_val_loss"] == pytest.approx(emulated["final_val_loss"], rel=1e-5)
    assert all(0 <= share < 1 for share in pipelined["bubble_by_rank"])
