"""The recursion of a loop is what the project's own stage and executor do on a quadratic."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import nn

from pipegap.analysis.theory.linear import Loop, hooks, linear
from pipegap.analysis.theory.stability import largest_stable
from tests.support import every_optimizer
from tests.support.every_correction import settings
from tests.support.quadratic import responses, trajectory

T = 30
SMALL = 1e-12
NONE: dict[str, Any] = {}
CORRECTIONS = {
    "none": ("none", NONE),
    "feedback": ("error_feedback", {"coefficient": 0.7}),
    "feedback, lag delay": ("error_feedback", {"coefficient": 1.0, "lag": "delay"}),
    "feedback on gradients": ("error_feedback_gradient", {"coefficient": 0.4}),
    "prediction": ("weight_prediction", {"horizon": 0.8}),
}
OPTIMIZERS = {
    "momentum": {"momentum": 0.5, "nesterov": False},
    "nesterov": {"momentum": 0.6, "nesterov": True},
}
each_correction = pytest.mark.parametrize("correction", CORRECTIONS)


def node(name: str, **changes: Any) -> dict[str, Any]:
    """Settings without decay of the weights."""
    made = every_optimizer.maker(name, weight_decay=0.0, **changes)
    return {"_target_": every_optimizer.address(name), **made.keywords}


def closed(optimizer: dict[str, Any], correction: dict[str, Any], delay: int) -> Loop:
    return Loop(linear(optimizer), hooks(correction, delay))


def trained(optimizer: dict[str, Any], *rest: Any, **more: Any) -> NDArray[np.float64]:
    name = optimizer["_target_"].rpartition(".")[2]
    options = {key: value for key, value in optimizer.items() if key != "_target_"}
    return np.array(trajectory(every_optimizer.maker(name, **options), *rest, **more))


@each_correction
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("delay", [1, 3])
def test_weights_follow_the_recursion(correction: str, kind: str, delay: int) -> None:
    """Exact up to rounding, from the update on at which no lag reaches the start of the run."""
    fed = settings(*CORRECTIONS[correction])
    optimizer = node("sgd", lr=0.15, **OPTIMIZERS[kind])
    weights = trained(optimizer, fed, delay, T)
    a = closed(optimizer, fed, delay).characteristic(0.15)
    left = np.convolve(weights, a, mode="valid")[2 * delay + 2 :]
    assert np.abs(left).max() < SMALL * np.abs(weights).max()
    assert np.abs(weights[1:] - weights[:-1]).max() > 0.1


@each_correction
def test_noise_is_the_power_of_the_response_to_one_noisy_gradient(correction: str) -> None:
    """White noise of variance 1 gives the sum of the squares of that response."""
    fed, k = settings(*CORRECTIONS[correction]), 0.2
    optimizer = node("sgd", lr=k, **OPTIMIZERS["nesterov"])
    quiet, noisy = (trained(optimizer, fed, 1, 140, noise=noise) for noise in ({}, {9: 1.0}))
    response = (noisy - quiet) / k
    assert abs(response[-1]) < 1e-6
    expected = closed(optimizer, fed, 1).noise(k)
    np.testing.assert_allclose(np.square(response).sum(), expected, rtol=1e-9)


EPS = 1e12
"""Beside it second moments are nothing: what is divided by their root is divided by a constant."""
DECAYS = ("momentum", "difference_decay", "slow_momentum", "variance_decay")
BY_EPS = ["adamw", "nadamw", "adan", "adopt", "ademamix", "mars", "soap", "kl_soap"]
FROZEN: dict[str, dict[str, Any]] = {
    **{name: {"eps": EPS, "momentum_decay": 1e9, "slow_warmup": 1} for name in BY_EPS},
    "muon": {"scaling": "original"},
    "normuon": {"scaling": "preserve_norm", "eps": 1e-30},  # 1 x 1: its norm is all that it has
    "sgdw": {},
}
"""Optimizer → settings with which its preconditioner does not change."""
ORTHOGONALISED = "pytorch_optimizer.optimizer.muon.base.zero_power_via_newton_schulz_5"


@pytest.mark.parametrize("name", FROZEN)
def test_an_optimizer_follows_its_recursion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the preconditioner frozen, and after its bias corrections, which are below 1e-15 here.

    Muon and NorMuon run without the orthogonalisation.
    """
    monkeypatch.setattr(ORTHOGONALISED, lambda gradient, **_: gradient)
    decays = {key: 0.5 - 0.1 * i for i, key in enumerate(DECAYS)}
    optimizer, fed = node(name, **decays, **FROZEN[name]), settings("error_feedback")
    loop = closed(optimizer, fed, 1)
    k = 0.7 * largest_stable(loop)
    scale = EPS if name in BY_EPS else 1.0
    weights = trained({**optimizer, "lr": k * scale}, fed, 1, 90)[60:]
    left = np.convolve(weights, loop.characteristic(k), mode="valid")
    assert np.abs(left).max() < 1e-9 * np.abs(weights).max()
    assert np.abs(weights).max() > 0


KINDS = {"lion": "matrix", "signum": "matrix", "shampoo": "matrix", "scion": "embedding"}
"""Optimizers whose first steps of a 1 x 1 weight tell no more than a sign → kind of that weight."""


@pytest.mark.parametrize("name", KINDS)
def test_the_sign_of_an_update_is_that_of_the_filter(name: str) -> None:
    optimizer, weight = node(name, lr=1e-6), nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    gradients = torch.randn(80, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    made = every_optimizer.maker(name, lr=1e-6, weight_decay=0.0)([(KINDS[name], weight)])
    updates = [update.item() for update in responses(made, weight, list(gradients))]
    own = linear(optimizer)
    filtered = lfilter(own.now.coef, own.past.coef, gradients.flatten().numpy())
    assert np.array_equal(np.sign(updates), np.sign(filtered))
