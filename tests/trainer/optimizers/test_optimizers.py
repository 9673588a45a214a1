"""What every optimizer of conf/optimizer/ must do, whatever its rule."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.routing import Kind, kinds
from pipegap.trainer.schedules import recipes as schedules
from tests.support import delayed, gangs, small, toy
from tests.support.every_optimizer import NAMES, maker
from tests.support.llama import SMALL
from tests.support.whole import whole

every = pytest.mark.parametrize("name", NAMES)
ON_SPHERES = ("adamh", "muonh", "normuonh")
"""Optimizers that do not decay hidden matrices: their norm is set anew, up to rounding."""
ONE_STAGE = {"num_stages": 1, "num_microbatches": 1, **delayed.PHASES}


def one_of_each() -> list[tuple[Kind, nn.Parameter]]:
    torch.manual_seed(0)
    kinds_of: list[Kind] = ["matrix", "matrix", "matrix", "embedding", "vector"]
    weights = [nn.Parameter(torch.randn(shape)) for shape in [(6, 4), (4, 6), (6, 4), (5, 4), (4,)]]
    return [*zip(kinds_of, weights, strict=True)]


def step(optimizer: Optimizer, batch: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(batch)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = scale * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    optimizer.step()


def test_kinds_follow_the_module_not_the_shape() -> None:
    kind_of = kinds(whole(SMALL))
    assert {name for name, kind in kind_of.items() if kind == "embedding"} == {
        "model.embed_tokens.weight"
    }
    assert {name for name, kind in kind_of.items() if kind == "vector"} == {
        name for name in kind_of if name.endswith("norm.weight")
    }
    assert sum(kind == "matrix" for kind in kind_of.values()) == 7 * 4


@every
def test_without_a_gradient_all_but_vectors_decay(name: str) -> None:
    weights = one_of_each()
    start = [p.detach().clone() for _, p in weights]
    optimizer = maker(name, weight_decay=0.1)(weights)
    for _ in range(2):  # some make no update at their first call
        step(optimizer, 0, scale=0.0)
    for (kind, p), before in zip(weights, start, strict=True):
        if kind == "matrix" and name in ON_SPHERES:
            torch.testing.assert_close(p, before, rtol=1e-6, atol=0)
        else:
            decayed = (p.abs() < before.abs()).all()
            assert torch.equal(p, before) if kind == "vector" else decayed, kind


@every
@pytest.mark.parametrize("present", ["matrix", "embedding", "vector"])
def test_a_stage_may_lack_any_kind(name: str, present: Kind) -> None:
    for weights in (
        [(kind, p) for kind, p in one_of_each() if kind == present],
        [(kind, p) for kind, p in one_of_each() if kind != present],
    ):
        start = [p.detach().clone() for _, p in weights]
        optimizer = maker(name)(weights)
        step(optimizer, 0)
        step(optimizer, 1)
        for (_, p), before in zip(weights, start, strict=True):
            assert not torch.equal(p, before)


@every
def test_the_schedule_reaches_every_group(name: str) -> None:
    weights = one_of_each()
    optimizer = maker(name)(weights)
    step(optimizer, 0)
    before = [p.detach().clone() for _, p in weights]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(optimizer, 1)
    rounding = 1e-6 if name in ON_SPHERES else 0
    for (_, p), old in zip(weights, before, strict=True):
        torch.testing.assert_close(p, old, rtol=rounding, atol=0)


@every
def test_no_draw_depends_on_what_ran_before(name: str) -> None:
    """The trial's seed alone decides; and nobody else's draws depend on the optimizer."""

    def trained(disturb: bool) -> list[torch.Tensor]:
        weights = one_of_each()
        optimizer = maker(name)(weights)
        for t in range(3):
            if disturb:
                torch.rand(t + 1), np.random.random(t + 1)
            before = torch.get_rng_state(), np.random.get_state()[1]
            step(optimizer, t)
            assert torch.equal(torch.get_rng_state(), before[0])
            assert np.array_equal(np.random.get_state()[1], before[1])
        return [p.detach() for _, p in weights]

    assert all(map(torch.equal, trained(disturb=False), trained(disturb=True)))


@pytest.mark.parametrize("name", ON_SPHERES)
def test_a_matrix_of_zeros_stays_and_is_no_nan(name: str) -> None:
    weight = nn.Parameter(torch.zeros(6, 4))
    step(maker(name)([("matrix", weight)]), 0)
    assert torch.equal(weight, torch.zeros(6, 4))


@every
def test_bf16_leaves_stay_finite(name: str) -> None:
    schedule = schedules.pipedream_2bw(6, **ONE_STAGE)
    executor = toy.emulated(
        schedule, maker(name), dtype=torch.float32, leaf_dtype=torch.bfloat16, clip_norm=1.0
    )
    updates = toy.run(executor, schedule.phases)
    assert len(updates) == 6
    assert all(weight.isfinite().all() for weight in toy.weights(executor))


@every
@pytest.mark.parametrize(("tau", "coefficient"), [(0, 1.0), (1, 1.0), (3, 0.0)])
def test_the_delayed_update_is_its_equation(name: str, tau: int, coefficient: float) -> None:
    """To the last bit: whatever the optimizer does, the stage applies it where the oracle does."""
    optimizer = maker(name, precondition_every=3)
    optimizer = maker(name, precondition_every=3, auxiliary_lr=optimizer.keywords["lr"])
    history, losses = delayed.expected(
        optimizer, torch.float32, lambda t: max(0, t - tau), coefficient=coefficient, clip_norm=0.5
    )
    schedule = schedules.constant_delay(delayed.T, delay=tau, **ONE_STAGE)
    correction = (
        partial(ErrorFeedback, coefficient=coefficient, lag=1) if coefficient else NoCorrection
    )
    executor = toy.emulated(schedule, optimizer, correction, clip_norm=0.5, dtype=torch.float32)
    assert [update.loss for update in toy.run(executor, schedule.phases)] == losses
    delayed.assert_equal(executor, history[-1])


def test_the_true_pipeline_gives_the_emulations_numbers(tmp_path: Path) -> None:
    words = ("pipeline=pipedream_2bw", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
    configs = [
        small.config(tmp_path, *words, f"optimizer={name}", "num_updates=4", "model.num_layers=4")
        for name in NAMES
    ]
    assert [len(numbers.updates) for numbers in gangs.all_equal(configs)] == [4] * len(NAMES)


RATES: dict[str, dict[str, float]] = {
    "scion": {"lr": 0.02, "radius": 10.0, "embedding_radius": 40.0},
    "shampoo": {"lr": 1.0},
    "dion": {"lr": 0.3},
    "dion2": {"lr": 0.3},
    "dion3": {"lr": 0.3},
    "adamuon": {"lr": 0.2},
    "muon": {"lr": 0.2},
    "nanochat": {"lr": 0.2},
    "normuon": {"lr": 0.2},
    "adopt": {"lr": 0.1},
    "soap": {"lr": 0.1},
    "kl_soap": {"lr": 0.1},
    "basis_rotation": {"lr": 0.1},
    "schedule_free_adamw": {"lr": 0.1},
}
"""Rules differ in how far a rate of 0.05 goes."""


@every
def test_it_finds_the_minimum_of_a_quadratic(name: str) -> None:
    """Half the squared distance to a point, noisy gradients, lr falling to 0: 100 updates."""
    weights = one_of_each()
    targets = [torch.randn(p.shape) for _, p in weights]
    changes = {"lr": 0.05, "auxiliary_lr": 0.05, "slow_warmup": 100, "weight_decay": 0.0}
    optimizer = maker(name, **{**changes, **RATES.get(name, {})})(weights)
    peaks = [group["lr"] for group in optimizer.param_groups]

    def distance() -> float:
        shown = evaluated(optimizer, [p for _, p in weights])
        pairs = zip(shown, targets, strict=True)
        return sum(float((p.detach() - target).square().sum()) for p, target in pairs)

    start = distance()
    for t in range(100):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * (1 - t / 100)
        for (_, p), target in zip(weights, targets, strict=True):
            p.grad = p.detach() - target + 0.1 * torch.randn(p.shape)
        optimizer.step()
    assert distance() < 0.1 * start, distance() / start
