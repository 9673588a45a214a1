"""Matrices of constant norm keep it, whatever else moves them."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.support import delayed, toy
from tests.support.every_optimizer import maker
from trainer.corrections.error_feedback import ErrorFeedback
from trainer.optimizers.routing import kinds
from trainer.schedules import recipes as schedules

LR = 0.02
every = pytest.mark.parametrize("name", ["adamh", "muonh", "normuonh"])


def step(optimizer: torch.optim.Optimizer, weight: nn.Parameter, t: int) -> None:
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(t))
    optimizer.step()


@every
def test_the_norm_is_constant_and_a_step_a_share_of_it(name: str) -> None:
    """Less than that share where the update leads away from the sphere."""
    weight = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    optimizer, radius = maker(name, lr=LR)([("matrix", weight)]), weight.norm().item()
    for t in range(200):
        before = weight.detach().clone()
        step(optimizer, weight, t)
        assert weight.norm().item() == pytest.approx(radius, rel=1e-5)  # fp32 rounds it
        assert 0 < (weight - before).norm() < LR * (1 + LR) * radius


@every
def test_a_matrix_of_zeros_stays_and_is_no_nan(name: str) -> None:
    weight = nn.Parameter(torch.zeros(6, 4))
    optimizer = maker(name)([("matrix", weight)])
    step(optimizer, weight, 0)
    assert torch.equal(weight, torch.zeros(6, 4))


@every
def test_error_feedback_keeps_the_norms(name: str) -> None:
    schedule = schedules.pipedream_2bw(60, num_stages=1, num_microbatches=1, **delayed.PHASES)
    feedback = partial(ErrorFeedback, coefficient=1.0, lag=1)
    executor = toy.emulated(
        schedule, maker(name, lr=LR), feedback, clip_norm=1.0, dtype=torch.float64
    )
    start = toy.weights(executor)
    toy.run(executor, schedule.phases)
    [module] = toy.modules()
    off = [
        abs(float(after.norm() / before.norm()) - 1)
        for kind, before, after in zip(
            kinds(module).values(), start, toy.weights(executor), strict=True
        )
        if kind == "matrix"
    ]
    assert off
    assert max(off) < 1e-12, off
