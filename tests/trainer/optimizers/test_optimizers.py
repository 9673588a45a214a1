"""What every optimizer of conf/optimizer/ must do, whatever its rule."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import NoCorrection
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


def test_rows_of_zeros_grow_under_muown() -> None:
    """Their first update gives them a direction, and Adam then a length."""
    weight, lr = nn.Parameter(torch.zeros(6, 4)), 0.01
    optimizer = maker("muown", lr=lr)([("matrix", weight)])
    for t in range(4):
        step(optimizer, 0)
        lengths = weight.detach().norm(dim=1)
        assert lengths.isfinite().all()
        assert lengths.gt(0).all()
        assert lengths.le(1.01 * lr * t + 1e-9).all()


@every
@pytest.mark.parametrize(("tau", "coefficient"), [(1, 1.0), (3, 0.0)])
def test_the_delayed_update_is_its_equation(name: str, tau: int, coefficient: float) -> None:
    """To the last bit: whatever the optimizer does, the stage applies it where the oracle does."""
    lr = maker(name).keywords["lr"]
    optimizer = maker(name, precondition_every=3, auxiliary_lr=lr)
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


SPECIAL = ("dion", "kron", "mars", "muonh", "schedule_free_adamw", "soap")
"""Optimizers that draw, average, keep norms, or renew bases."""


@pytest.mark.parametrize(
    "names",
    [SPECIAL, pytest.param({*NAMES} - {*SPECIAL}, marks=pytest.mark.slow)],
    ids=["special", "the others"],
)
def test_the_true_pipeline_gives_the_emulations_numbers(
    tmp_path: Path, names: Collection[str]
) -> None:
    words = ("pipeline=pipedream_2bw", "pipeline.num_stages=2", "pipeline.num_microbatches=2")
    configs = [
        small.config(tmp_path, *words, f"optimizer={name}", "num_updates=4", "model.num_layers=4")
        for name in sorted(names)
    ]
    assert [len(numbers.updates) for numbers in gangs.all_equal(configs)] == [4] * len(names)
