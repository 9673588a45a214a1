"""EMA-Nesterov around any optimizer is its authors' two equations, in trials and in own loops."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.optimizers.routing import kinds
from pipegap.trainer.schedules.recipes import pipedream_2bw, sync
from tests.support import every_optimizer, toy
from tests.support.delayed import ADAMW, PHASES
from tests.support.own_loop import KEEP, Loop

T, ONE_STAGE = 50, {"num_stages": 1, "num_microbatches": 1}
BETA, GAMMA, START, REST = 0.9, 0.8, 4, 6
LOOK = partial(EmaNesterov, look_ahead=BETA, decay=GAMMA, start=START, rest=REST)
SCHEDULES = {0: sync(T, **ONE_STAGE), 1: pipedream_2bw(T, **ONE_STAGE, **PHASES)}


def naive(make: Any, delay: int, coefficient: float) -> list[list[Tensor]]:
    """x(0) … x(T): x(t+1) = A(x(t) + β m(t)), m(t+1) = γ m(t) + (1 − γ) (x(t+1) − x(t))."""
    module = toy.modules(1)[0]
    weights = [*module.parameters()]
    optimizer = make([(kinds(module)[name], w) for name, w in module.named_parameters()])
    scheduler = LambdaLR(optimizer, toy.lr_factor)

    def show(values: Sequence[Tensor]) -> None:
        for weight, value in zip(weights, values, strict=True):
            weight.data.copy_(value)

    def taken() -> list[Tensor]:
        return [weight.detach().clone() for weight in weights]

    xs, ys, m, last = [taken()], [taken()], [torch.zeros_like(w) for w in weights], taken()
    for t in range(T):
        show(ys[max(0, t - delay)])
        optimizer.zero_grad()
        rows = toy.batch(t)
        toy.loss(module(rows[:, :-1]), rows[:, 1:]).backward()
        show(ys[t])
        optimizer.step()
        u = [y - w for y, w in zip(ys[t], taken(), strict=True)]
        x = taken()
        if t > 0 and delay:
            x = [
                w - coefficient * (now - old) if old.any() else w
                for w, now, old in zip(x, u, last, strict=True)
            ]
        last = u
        m = [GAMMA * a + (1 - GAMMA) * (b - c) for a, b, c in zip(m, x, xs[t], strict=True)]
        beta = BETA * toy.lr_factor(t) if START <= t + 1 < T - REST else 0.0
        xs.append(x)
        ys.append([a + beta * b for a, b in zip(x, m, strict=True)])
        scheduler.step()
    return xs


@pytest.mark.parametrize(("delay", "coefficient"), [(0, 0.0), (1, 0.0), (1, 1.0)])
@pytest.mark.parametrize("optimizer", ["adamw", "lion", "mars", "muon", "sgd", "soap"])
def test_it_is_the_authors_equations_around_any_optimizer(
    optimizer: str, delay: int, coefficient: float
) -> None:
    """In fp64 over 50 updates, where training evaluates, and at its end."""
    make = every_optimizer.maker(optimizer, lr=0.02)
    executor = toy.emulated(SCHEDULES[delay], make, partial(LOOK, coefficient=coefficient))
    expected = naive(make, delay, coefficient)
    for first, last in ((0, 20), (20, T)):
        toy.run(executor, (first, last))
        [stage] = executor._stages
        for ours, theirs in zip(stage.evaluated(), expected[last], strict=True):
            torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-12)
        ahead = [
            torch.equal(a, b) for a, b in zip(stage.evaluated(), stage.versions.master, strict=True)
        ]
        assert all(ahead) == (last == T), "only at the end they are what is stepped"


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("delay", SCHEDULES)
def test_a_loop_of_ones_own_looks_ahead_as_a_trial_does(delay: int, keep: str) -> None:
    """To the bit, without a delay too: what it reads, what it evaluates, and what it resumes."""
    correction = partial(LOOK, coefficient=0.7)
    executor = toy.emulated(SCHEDULES[delay], ADAMW, correction)
    options = {"delay": delay, "correction": correction, "num_updates": T, "keep": keep}
    loop = Loop(ADAMW, **options)
    losses = [update.loss for update in toy.run(executor, (0, 20))]
    assert loop.run(range(20)) == losses
    if keep == "weights" or not delay:
        shown = [weight.detach() for weight in executor._stages[0].evaluated()]
        assert all(map(torch.equal, loop.weights(), shown))
    resumed = Loop(ADAMW, **options)
    resumed.module.load_state_dict(loop.module.state_dict())
    resumed.delayed.load_state_dict(loop.delayed.state_dict())
    resumed.scheduler.load_state_dict(loop.scheduler.state_dict())
    losses = [update.loss for update in toy.run(executor, (20, T))]
    assert resumed.run(range(20, T)) == losses
    resumed.delayed.finish()
    assert all(map(torch.equal, resumed.weights(), toy.weights(executor)))


def test_a_rate_without_a_scheduler_counts_as_the_peak() -> None:
    """And what the last update reaches is not looked ahead of."""
    weight = torch.nn.Parameter(torch.tensor([10.0]))
    make = partial(EmaNesterov, look_ahead=2.0, decay=0.5, start=0, rest=0, coefficient=0.0)
    sgd = torch.optim.SGD([weight], lr=0.25)
    delayed = DelayedOptimizer(sgd, 0, correction=make, num_updates=2)
    weight.grad = torch.tensor([4.0])
    delayed.step()
    assert weight.item() == 9 - 2 * 0.5, "x(1) = 10 − 1, m(1) = 0.5 · (9 − 10)"
    with delayed.newest():
        assert weight.item() == 9
    delayed.step()
    assert weight.item() == 8 - 1, "x(2) = y(1) − 1, and no look"


def test_matrices_of_constant_norm_keep_it_where_they_look() -> None:
    """What is read and stepped from lies on the sphere, as what is evaluated does."""
    make = every_optimizer.maker("muonh", lr=0.05)
    executor = toy.emulated(SCHEDULES[1], make, partial(LOOK, coefficient=1.0))
    toy.run(executor, (0, 20))
    [stage] = executor._stages
    (on_sphere,) = (
        group["params"] for group in stage.optimizer.param_groups if "on_sphere" in group
    )
    start = [*toy.modules(1)[0].parameters()]
    rows = zip(start, stage.evaluated(), stage.versions.master, strict=True)
    matrices = [(a, x, y) for a, x, y in rows if any(y is weight for weight in on_sphere)]
    assert matrices
    for first, x, ahead in matrices:
        assert not torch.equal(x, ahead)
        assert x.norm().item() == pytest.approx(first.norm().item(), rel=1e-12)
        assert ahead.norm().item() == pytest.approx(first.norm().item(), rel=1e-12)
