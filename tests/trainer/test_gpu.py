"""What only a GPU can show: the same trial there, in bf16, compiled, with a fused optimizer."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipegap.trainer.models.delta import fused_gated_delta_rule, gated_delta_rule, unit
from pipegap.trainer.models.experts import Routes, multiplied
from pipegap.trainer.trial import run_trial
from tests.support import hybrid, moe, small
from tests.support.every_optimizer import NAMES
from tests.support.trials import ASYNC, untimed

Words = tuple[str, ...]
mixtures = pytest.mark.parametrize("family", [moe.WORDS, hybrid.WORDS], ids=["moe", "hybrid"])
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible to torch"),
    pytest.mark.filterwarnings("default"),  # compilers and libraries of kernels warn, by version
]


@pytest.mark.parametrize(("family", "rel"), [((), 1e-4), (moe.WORDS, 1e-3), (hybrid.WORDS, 1e-3)])
def test_a_gpu_gives_the_cpu_s_losses(tmp_path: Path, family: Words, rel: float) -> None:
    """A router whose chances are nearly equal may choose otherwise."""
    cpu = run_trial(small.config(tmp_path, *family, *ASYNC))
    gpu = run_trial(small.config(tmp_path, *family, *ASYNC, "device=cuda"))
    assert gpu["final_val_loss"] == pytest.approx(cpu["final_val_loss"], rel=rel)


def same_twice(tmp_path: Path, *words: str) -> bool:
    """Whether two trials in bf16 with a delay give the same numbers."""
    delayed = (*words, "pipeline=pipedream_2bw", "diagnostics=5", "device=cuda", "dtype=bfloat16")
    one, two = (
        run_trial(small.config(tmp_path, *delayed, f"out={tmp_path / name}")) for name in "ab"
    )
    return untimed(one) == untimed(two)


@pytest.mark.parametrize("optimizer", NAMES)
def test_the_same_numbers_twice(tmp_path: Path, optimizer: str) -> None:
    assert same_twice(tmp_path, f"optimizer={optimizer}")


def test_fused_and_compiled(tmp_path: Path) -> None:
    words = (*ASYNC, "device=cuda", "dtype=bfloat16")
    plain = run_trial(small.config(tmp_path, *words))
    fast = run_trial(small.config(tmp_path, *words, "optimizer.fused=true", "compile=true"))
    assert fast["final_val_loss"] == pytest.approx(plain["final_val_loss"], rel=1e-2)


@mixtures
@pytest.mark.parametrize("balance", ["loss", "bias"])
@pytest.mark.parametrize("way", [[], ["compile=true"]], ids=["eager", "compiled"])
def test_a_mixture_gives_the_same_numbers_twice(
    tmp_path: Path, family: Words, balance: str, way: list[str]
) -> None:
    """In bf16, with deterministic kernels alone: torch raises where an operation has none."""
    mixture = (*family, f"model.balance={balance}", "eval_dtype=bfloat16", *way)
    assert same_twice(tmp_path, *mixture, "correction=error_feedback", "optimizer=muon")


@mixtures
def test_stages_of_a_mixture_are_the_whole_model_on_a_gpu(tmp_path: Path, family: Words) -> None:
    """In fp32 two stages in one process compute what one does, to the last bit."""
    untied = (*family, "model.tied_embeddings=false")  # the sum of two copies has another order
    words = (*untied, "pipeline=pipedream_2bw", "pipeline.num_microbatches=2", "device=cuda")
    one, two = (
        run_trial(small.config(tmp_path, *words, f"pipeline.num_stages={p}")) for p in (1, 2)
    )
    assert one["final_val_loss"] == two["final_val_loss"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_on_a_gpu_are_a_loop_over_experts(dtype: torch.dtype) -> None:
    """And the same twice, with the gradients of both factors; some experts get no token."""
    draw = torch.Generator().manual_seed(0)
    chosen = torch.randint(0, 5, (40, 1), generator=draw).cuda()
    routes = Routes.of(chosen, 8)
    rows = torch.randn(40, 64, generator=draw).cuda().to(dtype)
    stack = torch.randn(8, 32, 64, generator=draw).cuda().to(dtype)
    upstream = torch.randn(40, 32, generator=draw).cuda().to(dtype)
    one, two = (gradients(rows, stack, routes.ends, upstream) for _ in range(2))
    assert all(map(torch.equal, one, two))
    bounds = [0, *routes.ends.tolist()]
    parts = zip(bounds[:-1], bounds[1:], stack, strict=True)
    expected = torch.cat([rows[start:end] @ matrix.T for start, end, matrix in parts])
    torch.testing.assert_close(one[0], expected)


def gradients(rows: Tensor, stack: Tensor, ends: Tensor, upstream: Tensor) -> list[Tensor]:
    """The products, and the gradients of rows and stack."""
    inputs = [x.clone().requires_grad_() for x in (rows, stack)]
    out = multiplied(*inputs, ends)
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream)]


@pytest.mark.parametrize("of", ["values", "gradients"])
def test_the_fused_delta_rule_is_ours(of: str) -> None:
    """Within what bf16 leaves: 4e-3 in Triton's interpreter."""
    pytest.importorskip("fla")
    if of == "gradients":  # on Hopper older ones compute others, and fla raises an error
        pytest.importorskip("triton", minversion="3.7.1")
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 100, 64, generator=draw) for _ in range(3))
    decay, rate = -torch.rand(2, 4, 100, generator=draw), torch.rand(2, 4, 100, generator=draw)
    inputs = [x.cuda().bfloat16() for x in (unit(q), unit(k), v, decay, rate)]
    upstream = torch.randn(v.shape, generator=draw).cuda()
    results = []
    for rule in (gated_delta_rule, fused_gated_delta_rule):
        given = [x.float().requires_grad_() for x in inputs]
        out = rule(*given, 64)
        results.append(
            [out.float()]
            if of == "values"
            else torch.autograd.grad(out, given, upstream.to(out.dtype))
        )
    for ours, fused in zip(*results, strict=True):
        assert (ours - fused).norm() < 0.01 * ours.norm()
