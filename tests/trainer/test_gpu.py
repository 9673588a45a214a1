"""What only a GPU can show: the same trial there, in bf16, compiled, with a fused optimizer."""

import os
import signal
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pipegap.trainer import rehearsal
from pipegap.trainer.base.errors import GangFailed
from pipegap.trainer.base.resources import SHARED, rank_device, ranks_may_share_a_gpu
from pipegap.trainer.models.qwen3_moe import Routes, multiplied
from pipegap.trainer.models.qwen3_next import fused_gated_delta_rule, gated_delta_rule, unit
from pipegap.trainer.ranks.groups import Heartbeat, joined
from pipegap.trainer.ranks.spawn import Parent, run_gang
from pipegap.trainer.trial import run_trial
from tests.support import gangs, models, small_sweep
from tests.support.choices import OPTIMIZERS
from tests.support.gangs import Send
from tests.support.torch_naive import differences, expected
from tests.support.torch_parallel import SETTINGS, assert_alike
from tests.support.torch_pipeline import Case, on_ranks
from tests.support.trials import ASYNC, ran, untimed

Words = tuple[str, ...]
mixtures = pytest.mark.parametrize(
    "family", [models.WORDS, models.WORDS_OF_HYBRID], ids=["moe", "hybrid"]
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible to torch"),
    pytest.mark.filterwarnings("default"),  # compilers and libraries of kernels warn, by version
]


@pytest.mark.parametrize(
    ("family", "rel"), [((), 1e-4), (models.WORDS, 1e-3), (models.WORDS_OF_HYBRID, 1e-3)]
)
def test_a_gpu_gives_the_cpu_s_losses(tmp_path: Path, family: Words, rel: float) -> None:
    """A router whose chances are nearly equal may choose otherwise."""
    cpu = run_trial(small_sweep.config(tmp_path, *family, *ASYNC))
    gpu = run_trial(small_sweep.config(tmp_path, *family, *ASYNC, "device=cuda"))
    assert gpu["final_val_loss"] == pytest.approx(cpu["final_val_loss"], rel=rel)


def same_twice(tmp_path: Path, *words: str) -> bool:
    """Whether two trials in bf16 with a delay give the same numbers."""
    delayed = (*words, "pipeline=pipedream_2bw", "diagnostics=5", "device=cuda", "dtype=bfloat16")
    one, two = (
        run_trial(small_sweep.config(tmp_path, *delayed, f"out={tmp_path / name}")) for name in "ab"
    )
    return untimed(one) == untimed(two)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_same_numbers_twice(tmp_path: Path, optimizer: str) -> None:
    assert same_twice(tmp_path, f"optimizer={optimizer}")


def test_fused_and_compiled(tmp_path: Path) -> None:
    words = (*ASYNC, "device=cuda", "dtype=bfloat16")
    plain = run_trial(small_sweep.config(tmp_path, *words))
    fast = run_trial(small_sweep.config(tmp_path, *words, "optimizer.fused=true", "compile=true"))
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
        run_trial(small_sweep.config(tmp_path, *words, f"pipeline.num_stages={p}")) for p in (1, 2)
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


# Ranks on GPUs, by NCCL: one GPU each or, where NCCL is told to take that, one for all.

TWO, FOUR = "pipeline.num_stages=2", "pipeline.num_stages=4"
SHAPE = (
    *("model.num_layers=4", "pipeline.num_microbatches=4", "batch_size=8"),
    *("num_updates=6", "clip_norm=0.5"),
)
DELAYED = ("pipeline=pipedream_2bw", "correction=error_feedback")


def device_for(num_ranks: int) -> str:
    """`cuda`, or `cuda:0` where all ranks share a GPU."""
    if torch.cuda.device_count() >= num_ranks:
        return "cuda"
    if ranks_may_share_a_gpu():
        return "cuda:0"
    pytest.skip(f"{num_ranks} ranks need as many GPUs, or {SHARED}=1 and NCCL 2.30")


def assert_all_equal(folder: Path, num_ranks: int, ways: list[Words]) -> None:
    """Losses, norms and weights are those of one process on that GPU, to the last bit."""
    device = f"device={device_for(num_ranks)}"
    configs = [small_sweep.config(folder, *SHAPE, *way, device) for way in ways]
    unequal = {}
    for way, config, ranks in zip(ways, configs, gangs.pipelined(configs), strict=True):
        try:
            gangs.assert_equal(config, ranks)
        except AssertionError as error:
            unequal[way] = error
    assert not unequal


@pytest.mark.parametrize("p", [1, 2, 4])
def test_every_schedule_and_optimizer(tmp_path: Path, p: int) -> None:
    choices = product(
        ("optimizer=adamw", "optimizer=muon"),
        [("pipeline=sync",), ("pipeline=pipedream_2bw",), DELAYED],
    )
    ways = [(optimizer, *schedule, f"pipeline.num_stages={p}") for optimizer, schedule in choices]
    assert_all_equal(tmp_path, p, ways)


def test_other_ways_to_run_it(tmp_path: Path) -> None:
    diverges = ("optimizer=sgd", "clip_norm=null", "optimizer.lr=1e12")
    assert_all_equal(
        tmp_path,
        2,
        [
            ("pipeline=interleaved_1f1b", "pipeline.num_chunks=2", TWO),
            ("pipeline=zero_bubble_h1", TWO),
            ("pipeline=zero_bubble_v", TWO),
            ("pipeline=dualpipe_v", TWO),
            ("pipeline=paci", TWO),
            ("pipeline=constant_delay", "pipeline.delay=3", TWO),
            (*DELAYED, "pipeline.synchronous_start=2", "pipeline.synchronous_cooldown=2", TWO),
            (*DELAYED, "pipeline.slack=true", TWO),
            (*DELAYED, "clip_scope=stage", TWO),
            (*DELAYED, "dtype=bfloat16", TWO),
            (*DELAYED, "dtype=bfloat16", "compile=true", TWO),
            (*DELAYED, "optimizer=soap", "model.tied_embeddings=false", TWO),
            (*DELAYED, "optimizer.fused=true", TWO),
            ("pipeline=zero_bubble_v", *diverges, TWO),
        ],
    )


@pytest.mark.parametrize("family", [models.WORDS, models.WORDS_OF_HYBRID], ids=["moe", "hybrid"])
def test_models_with_experts(tmp_path: Path, family: Words) -> None:
    assert_all_equal(tmp_path, 2, [(*family, "optimizer=muon", *DELAYED, TWO)])


def test_replicas(tmp_path: Path) -> None:
    assert_all_equal(tmp_path, 4, [("num_replicas=2", "optimizer=muon", *DELAYED, TWO)])


def test_a_stop_and_a_resume_change_no_bit(tmp_path: Path) -> None:
    device = f"device={device_for(2)}"
    words = (*DELAYED, "optimizer=muon", "dtype=bfloat16", "runner=pipelined", TWO, device)
    config = small_sweep.config(tmp_path, *words)
    rehearsal.begin(config, tmp_path / "out")
    found = rehearsal.resume(config, tmp_path / "out")
    assert (found.status, found.difference) == ("completed", None)


@pytest.mark.parametrize("p", [1, 2])
def test_a_traced_trial_records_what_its_emulation_does(tmp_path: Path, p: int) -> None:
    pytest.importorskip("vl_convert")
    stages = (f"device={device_for(p)}", f"pipeline.num_stages={p}", "pipeline.num_microbatches=2")
    _, emulated = ran(tmp_path, "emulated", *ASYNC, *stages)
    words = ("runner=pipelined", "trace=true")
    _, pipelined = ran(tmp_path, "pipelined", *ASYNC, *stages, *words)
    assert pipelined == emulated


def dies(store: dist.Store, heartbeat: Heartbeat, send: Send) -> None:
    """Rank 1 dies while rank 0 waits for a sum by NCCL."""
    device = rank_device(device_for(2), heartbeat.rank, 2)
    with joined(store, heartbeat.rank, 2, 1, device, heartbeat, 60) as gang:
        gang.barrier()
        if gang.place == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        gang.wait(gang.all_reduce(torch.zeros(1, device=device), gang.pipeline))
        torch.cuda.synchronize()


def test_a_killed_rank_is_named() -> None:
    device_for(2)
    with pytest.raises(GangFailed, match="rank 1 was killed by SIGKILL"):
        run_gang(dies, (), 2, Parent(lambda message: None, timeout=60))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_a_schedule_of_torch_gives_the_numbers_of_the_equations(p: int) -> None:
    """`Schedule2BW`, with drains for an evaluation and for a save and load."""
    common = {"error_feedback": 1.0, "device": device_for(p)}
    cases = [
        Case(p, drains={2: "evaluate", 5: "save"}, **common),
        Case(2 * p, "our_muon", drains={4: "save in parts"}, slack=True, **common),
        Case(2 * p, "torch_muon", synchronous_start=2, **common),
        *([Case(p, shares="stages", drains={3: "drain"}, **common)] if p > 1 else []),
    ]
    every = zip(cases, on_ranks(p, cases), strict=True)
    unequal = [(case, differences(trained, expected(case, p))) for case, trained in every]
    assert not [(case, names) for case, names in unequal if names]


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "aot_eager"])
def test_stages_as_people_wrap_them(name: str) -> None:
    setting = SETTINGS[name]
    assert_alike([name], device_for(2 * setting.data * setting.tensor))
