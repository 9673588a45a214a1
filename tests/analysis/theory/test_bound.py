"""A bound for any constant delay, beside what the project's own delayed update does.

The conditions are those of the paper's theory (arXiv 2606.30634, appendices C and D): a star-convex
function f that is L-smooth in a norm, and updates lr · s with s the exact maximiser of ⟨m, s⟩ over
the unit ball of that norm. With D_t = ‖W(t) − W*‖ and e_t = ‖∇f(W(t)) − m_t‖* (the dual norm),

    f(W(t+1)) − f* ≤ (1 − lr / D_t) (f(W(t)) − f*) + 2 lr e_t + L lr² / 2,

by smoothness, ⟨∇f, s⟩ ≥ ‖∇f‖* − 2 ‖∇f − m‖*, and star-convexity, ‖∇f‖* ≥ (f − f*) / D. The delay is
in e_t alone. With the momentum m_t = β m_{t−1} + (1 − β) g_t of gradients τ updates old,

    e_t ≤ L lr (τ + β / (1 − β)) + β^(t+1) ‖∇f(W(t))‖*.

Here f is Σ |x| (1 − e^−|x|), which is star-convex and not convex (Nesterov and Polyak 2006), the
norm is the largest entry, and the optimizer Signum, whose sign is that maximiser.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support import every_optimizer
from tests.support.every_correction import settings
from tests.support.quadratic import trained

Values = NDArray[np.float64]
D, T, BETA = 6, 300, 0.9
SMOOTH = 2.0 * D
"""|f''| ≤ 2 in each entry, and the dual norm sums D of them."""
ROUNDING = 1e-9
DELAYS = [0, 1, 3, 10]


def loss(output: Tensor, _: Tensor) -> Tensor:
    size = output.abs()
    return (size * (1 - torch.exp(-size))).sum()


def value(weights: Values) -> Values:
    size = np.abs(weights)
    return np.asarray((size * (1 - np.exp(-size))).sum(axis=-1))


def gradient(weights: Values) -> Values:
    size = np.abs(weights)
    return np.asarray(np.sign(weights) * (1 + (size - 1) * np.exp(-size)))


class Run(NamedTuple):
    """Of T updates: weights [T + 1, D], and the momentum [T, D] as the equation has it."""

    weights: Values
    momentum: Values
    lr: float


def trained_for(delay: int, lr: float = 0.01) -> Run:
    generator = torch.Generator().manual_seed(delay)
    start = 2 * torch.randn(1, D, generator=generator, dtype=torch.float64)
    # The identity as input makes the weights the output.
    batch = torch.cat([torch.eye(D), torch.zeros(D, 1)], dim=1).double()
    optimizer = every_optimizer.maker("signum", lr=lr, momentum=BETA, weight_decay=0.0)
    weights_by_update = trained(start, optimizer, settings("none"), delay, T, lambda t: batch, loss)
    weights = torch.cat(weights_by_update).numpy()
    momentum, rows = np.zeros(D), []
    for t in range(T):
        momentum = BETA * momentum + (1 - BETA) * gradient(weights[max(0, t - delay)])
        rows.append(momentum)
    return Run(weights, np.array(rows), lr)


def errors(run: Run) -> Values:
    """e_t, [T]."""
    return np.asarray(np.abs(gradient(run.weights[:-1]) - run.momentum).sum(axis=-1))


def test_the_function_is_star_convex_and_not_convex() -> None:
    at = np.linspace(-8, 8, 2001)[:, None]
    assert (gradient(at)[:, 0] * at[:, 0] >= value(at) - ROUNDING).all()
    slopes = np.diff(gradient(at)[:, 0]) / np.diff(at[:, 0])
    assert slopes.min() < -0.04  # -exp(-3) at its least
    assert np.abs(slopes).max() <= 2


@pytest.mark.parametrize("delay", DELAYS)
def test_no_update_of_late_gradients_ends_above_the_bound(delay: int) -> None:
    run = trained_for(delay)
    # The update is an exact oracle of late gradients.
    np.testing.assert_allclose(np.diff(run.weights, axis=0), -run.lr * np.sign(run.momentum))
    f, distance = value(run.weights), np.abs(run.weights[:-1]).max(axis=-1)
    kept, cost = (1 - run.lr / distance) * f[:-1], 2 * run.lr * errors(run)
    bound = kept + cost + SMOOTH * run.lr**2 / 2
    assert (f[1:] <= bound + ROUNDING).all()
    assert f[-1] < 0.2 * f[0]
    # Without its term of e_t the bound is wrong: the delay does cost something.
    assert delay == 0 or (f[1:] > bound - cost).any()
    # The error of the momentum grows with the delay at most.
    start = BETA ** np.arange(1, T + 1) * np.abs(gradient(run.weights[:-1])).sum(axis=-1)
    most = SMOOTH * run.lr * (delay + BETA / (1 - BETA)) + start
    assert (errors(run) <= most + ROUNDING).all()
