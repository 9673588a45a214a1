"""Edges of stability and noise against closed forms, numbers found before, and each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor, nn

from pipegap.analysis.theory import NONE as NONE_OF
from pipegap.analysis.theory import (
    SAME,
    Loop,
    average,
    best_strength,
    hooks,
    largest_stable,
    linear,
    stability,
)
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import declared
from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Clip
from pipegap.trainer.schedules.recipes import constant_delay
from pipegap.trainer.stages.stage import Stage
from tests.support import choices, every_correction
from tests.support.delayed import PHASES
from tests.support.every_correction import ONE_STAGE, maker, settings

NONE = every_correction.settings("none")
FEEDBACK = every_correction.settings("error_feedback")

# sync, delay 1, Error Feedback with λ = 1, sync / delay, feedback / delay, and the best λ on a grid
# of quarters; found by an independent program from hand-written characteristic polynomials.
KNOWN = {
    "adamw": ("38", "1.00", "2.70", "38", "2.70", 1.5),
    "soap": ("78", "1.00", "4.00", "78", "4.00", 1.75),
    "mars": ("40", "1.76", "7.28", "23", "4.14", 1.0),
    "muon": ("26.9", "3.75", "6.78", "7.2", "1.81", 0.5),
    "normuon": ("26.9", "3.75", "6.78", "7.2", "1.81", 0.5),
    "nadamw": ("13.6", "2.53", "3.45", "5.4", "1.36", 0.5),
    "adan": ("23.1", "10.4", "7.02", "2.2", ".68", 0.0),
    "lion": ("20.9", "9.9", "6.4", "2.1", ".65", 0.0),
}


def node(name: str, **changes: Any) -> dict[str, Any]:
    settings = choices.optimizer_maker(name, **changes).keywords
    return {"_target_": choices.optimizer_address(name), **settings}


def closed(optimizer: dict[str, Any], correction: dict[str, Any], delay: int) -> Loop:
    return Loop(linear(optimizer), hooks(correction, delay))


def limit(optimizer: dict[str, Any], correction: dict[str, Any], delay: int) -> float:
    return largest_stable(closed(optimizer, correction, delay))


def close(value: float, printed: str) -> bool:
    """Within one unit of the last printed digit."""
    return abs(value - float(printed)) <= 10.0 ** -len(printed.partition(".")[2])


@pytest.mark.parametrize("name", KNOWN)
def test_limits_are_those_that_were_found_before(name: str) -> None:
    *printed, best = KNOWN[name]
    sync, delayed = limit(node(name), NONE, 0), limit(node(name), NONE, 1)
    by_strength = {
        strength: limit(node(name), {**FEEDBACK, "coefficient": strength}, 1)
        for strength in np.arange(0, 2.25, 0.25)
    }
    numbers = [sync, delayed, by_strength[1.0], sync / delayed, by_strength[1.0] / delayed]
    assert all(map(close, numbers, printed)), numbers
    assert max(by_strength, key=lambda strength: by_strength[strength]) == best


def test_the_refined_best_strength_is_at_least_as_good_as_the_grid() -> None:
    best, best_limit = best_strength(linear(node("muon")), FEEDBACK, 1)
    around = [
        limit(node("muon"), {**FEEDBACK, "coefficient": best + step}, 1) for step in (-0.02, 0.02)
    ]
    assert best == pytest.approx(0.61, abs=0.01)
    assert best_limit == pytest.approx(limit(node("muon"), {**FEEDBACK, "coefficient": best}, 1))
    assert best_limit > max(around)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
def test_without_nesterov_a_delay_of_one_caps_k_at_one(momentum: float) -> None:
    """For every momentum, which raises sync's limit to 2 (1 + β) / (1 − β)."""
    optimizer = node("muon", momentum=momentum, nesterov=False)
    assert limit(optimizer, NONE, 0) == pytest.approx(2 * (1 + momentum) / (1 - momentum), rel=1e-5)
    assert limit(optimizer, NONE, 1) == pytest.approx(1.0, rel=1e-5)


def test_a_delay_of_three_is_under_corrected_by_a_coefficient_of_one() -> None:
    limits = [
        limit(node("muon"), {**FEEDBACK, **changes}, 3)
        for changes in ({}, {"lag": "delay"}, {"coefficient": 3.0})
    ]
    assert all(map(close, limits, ["0.82", "1.11", "1.64"])), limits


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_plain_descent_has_a_limit_in_closed_form(delay: int) -> None:
    """2 sin(π / (2 (2 τ + 1))): the first k at which z^(τ+1) − z^τ + k = 0 has |z| = 1."""
    expected = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    assert limit(node("shampoo"), NONE, delay) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("k", [0.01, 0.3, 0.9])
def test_noise_of_plain_descent_has_a_closed_form(k: float) -> None:
    """Variances of autoregressions of first and second order."""
    sync, delayed = (Loop(SAME, hooks(NONE, delay)) for delay in (0, 1))
    assert sync.noise(k) == pytest.approx(1 / (k * (2 - k)))
    assert delayed.noise(k) == pytest.approx((1 + k) / ((1 - k) * k * (2 + k)))


def test_noise_has_no_end_beyond_the_limit() -> None:
    assert Loop(SAME, hooks(NONE, 1)).noise(1.01) == math.inf


def test_a_taylor_term_with_the_right_curvature_undoes_the_delay() -> None:
    taylor = every_correction.settings("taylor", {"coefficient": 1.0})
    assert limit(node("muon"), taylor, 2) == pytest.approx(limit(node("muon"), NONE, 0))


def test_without_a_delay_nothing_is_corrected() -> None:
    row = stability(("muon", "feedback"), node("muon"), FEEDBACK, delay=0, k=0.1)
    assert row.sync == row.delayed == row.corrected
    assert (row.noise_delayed, row.noise_corrected) == (1.0, 1.0)
    assert math.isnan(row.best_strength)
    assert math.isnan(row.noise_removed)


@pytest.mark.parametrize("name", ["adamw", "muon", "mars", "adan", "lion"])
@pytest.mark.parametrize("correction", [NONE, FEEDBACK], ids=["none", "feedback"])
def test_no_window_of_instability_lies_below_a_limit(name: str, correction: dict[str, Any]) -> None:
    """And none of stability above it, up to ten times it."""
    loop = Loop(linear(node(name)), hooks(correction, 1))
    edge = largest_stable(loop)
    assert all(map(loop.is_stable, np.geomspace(edge / 1e4, edge * 0.9999, 60)))
    assert not any(map(loop.is_stable, np.geomspace(edge * 1.0001, edge * 10, 30)))


def test_nadamw_has_half_of_its_look_ahead_at_first() -> None:
    start = linear(node("nadamw"), updates=0)
    assert start == (1 - 0.45) * SAME + 0.45 * average(0.9)
    assert linear(node("nadamw")) == linear(node("nadamw"), 1e9)


def is_linear(group: str, name: str) -> bool:
    theory = declared(group)[name].theory
    return theory is not None and not theory.startswith(NONE_OF)


REFUSED = r"is not linear|no fixed recursion|not covered by the theory"


@pytest.mark.parametrize("name", choices.OPTIMIZERS)
def test_every_optimizer_is_linear_or_refused_with_a_reason(name: str) -> None:
    if is_linear("optimizer", name):
        assert linear(node(name)).denominator.coef[0] == 1
        assert 0 < limit(node(name), NONE, 1) < math.inf
    else:
        with pytest.raises(BadInput, match=REFUSED):
            linear(node(name))


@pytest.mark.parametrize("name", every_correction.NAMES)
def test_every_correction_is_linear_or_refused_with_a_reason(name: str) -> None:
    correction = every_correction.settings(name)
    if is_linear("correction", name):
        hooks(correction, 1)
    else:
        with pytest.raises(BadInput, match=REFUSED):
            hooks(correction, 1)


def test_what_the_theory_does_not_know_is_not_covered() -> None:
    with pytest.raises(BadInput, match=r"optimizer=mine: is not covered by the theory"):
        linear({"_target_": "my.package.mine"})
    with pytest.raises(BadInput, match=r"correction=Mine: is not covered by the theory"):
        hooks({"_target_": "my.package.Mine"}, 1)


# A bound for any constant delay, beside what the project's own delayed update does.
#
# The conditions are those of the paper's theory (arXiv 2606.30634, appendices C and D): a
# star-convex function f that is L-smooth in a norm, and updates lr · s with s the exact maximiser
# of ⟨m, s⟩ over the unit ball of that norm. With D_t = ‖W(t) − W*‖ and e_t = ‖∇f(W(t)) − m_t‖*
# (the dual norm),
#
#     f(W(t+1)) − f* ≤ (1 − lr / D_t) (f(W(t)) − f*) + 2 lr e_t + L lr² / 2,
#
# by smoothness, ⟨∇f, s⟩ ≥ ‖∇f‖* − 2 ‖∇f − m‖*, and star-convexity, ‖∇f‖* ≥ (f − f*) / D. The
# delay is in e_t alone. With the momentum m_t = β m_{t−1} + (1 − β) g_t of gradients τ updates
# old,
#
#     e_t ≤ L lr (τ + β / (1 − β)) + β^(t+1) ‖∇f(W(t))‖*.
#
# Here f is Σ |x| (1 − e^−|x|), which is star-convex and not convex (Nesterov and Polyak 2006),
# the norm is the largest entry, and the optimizer Signum, whose sign is that maximiser.

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
    optimizer = choices.optimizer_maker("signum", lr=lr, momentum=BETA, weight_decay=0.0)
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


# The recursion of a loop is what the project's own stage and executor do on a quadratic.

NUM_UPDATES = 30
SMALL = 1e-12
CORRECTIONS = {
    "none": ("none", {}),
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


def trained_of_recursion(optimizer: dict[str, Any], *rest: Any, **more: Any) -> NDArray[np.float64]:
    name = optimizer["_target_"].rpartition(".")[2]
    options = {key: value for key, value in optimizer.items() if key != "_target_"}
    return np.array(trajectory(choices.optimizer_maker(name, **options), *rest, **more))


@each_correction
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("delay", [1, 3])
def test_weights_follow_the_recursion(correction: str, kind: str, delay: int) -> None:
    """Exact up to rounding, from the update on at which no lag reaches the start of the run."""
    fed = settings(*CORRECTIONS[correction])
    optimizer = node("sgd", weight_decay=0.0, lr=0.15, **OPTIMIZERS[kind])
    weights = trained_of_recursion(optimizer, fed, delay, NUM_UPDATES)
    a = closed(optimizer, fed, delay).characteristic(0.15)
    left = np.convolve(weights, a, mode="valid")[2 * delay + 2 :]
    assert np.abs(left).max() < SMALL * np.abs(weights).max()
    assert np.abs(weights[1:] - weights[:-1]).max() > 0.1


@each_correction
def test_noise_is_the_power_of_the_response_to_one_noisy_gradient(correction: str) -> None:
    """White noise of variance 1 gives the sum of the squares of that response."""
    fed, k = settings(*CORRECTIONS[correction]), 0.2
    optimizer = node("sgd", weight_decay=0.0, lr=k, **OPTIMIZERS["nesterov"])
    quiet, noisy = (
        trained_of_recursion(optimizer, fed, 1, 140, noise=noise) for noise in ({}, {9: 1.0})
    )
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
    optimizer = node(name, weight_decay=0.0, **decays, **FROZEN[name])
    fed = settings("error_feedback")
    loop = closed(optimizer, fed, 1)
    k = 0.7 * largest_stable(loop)
    scale = EPS if name in BY_EPS else 1.0
    weights = trained_of_recursion({**optimizer, "lr": k * scale}, fed, 1, 90)[60:]
    left = np.convolve(weights, loop.characteristic(k), mode="valid")
    assert np.abs(left).max() < 1e-9 * np.abs(weights).max()
    assert np.abs(weights).max() > 0


KINDS = {"lion": "matrix", "signum": "matrix", "shampoo": "matrix", "scion": "embedding"}
"""Optimizers whose first steps of a 1 x 1 weight tell no more than a sign → kind of that weight."""


@pytest.mark.parametrize("name", KINDS)
def test_the_sign_of_an_update_is_that_of_the_filter(name: str) -> None:
    optimizer, weight = (
        node(name, weight_decay=0.0, lr=1e-6),
        nn.Parameter(torch.zeros(1, 1, dtype=torch.float64)),
    )
    gradients = torch.randn(80, 1, 1, generator=torch.Generator().manual_seed(0)).double()
    made = choices.optimizer_maker(name, lr=1e-6, weight_decay=0.0)([(KINDS[name], weight)])
    updates = [update.item() for update in responses(made, weight, list(gradients))]
    own = linear(optimizer)
    filtered = lfilter(own.numerator.coef, own.denominator.coef, gradients.flatten().numpy())
    assert np.array_equal(np.sign(updates), np.sign(filtered))


# One weight on a quadratic, trained by the project's own stage and emulated executor.


def trajectory(
    optimizer: Callable[..., torch.optim.Optimizer],
    correction: Mapping[str, Any],
    delay: int,
    num_updates: int,
    noise: Mapping[int, float] | None = None,
) -> list[float]:
    """W(0) = 1, …, W(T) for the loss W² / 2 + n_t W, in fp64; `noise` is n_t, 0 where missing."""
    start = torch.ones(1, 1, dtype=torch.float64)
    batch = partial(_batch, noise or {})
    weights = trained(start, optimizer, correction, delay, num_updates, batch, _loss)
    return [weight.item() for weight in weights]


def trained(
    start: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    correction: Mapping[str, Any],
    delay: int,
    num_updates: int,
    batch: Callable[[int], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """W(0) = `start`, …, W(T), [1, d] each, of a layer without bias under a constant delay.

    All columns of a batch but the last are inputs, all but the first are handed to the loss.
    """
    module = nn.Linear(start.shape[1], 1, bias=False, dtype=start.dtype)
    module.weight = nn.Parameter(start.clone())
    schedule = constant_delay(num_updates, delay=delay, **ONE_STAGE, **PHASES)
    stage = Stage(
        module,
        {"weight": "matrix"},
        optimizer,
        partial(maker(correction), num_updates),
        lambda t: 1.0,
        lag=delay,
        tied=frozenset(),
        tied_lag=delay,
        dtype=start.dtype,
    )
    executor = Emulated([stage], schedule, batch, loss, Clip(float("inf")))
    [master] = stage.versions.master
    weights = [master.clone()]
    executor.run(0, num_updates, lambda _: weights.append(master.clone()))
    return weights


def _batch(noise: Mapping[int, float], t: int) -> Tensor:
    """The model's input, which makes its output the weight, and n_t."""
    return torch.tensor([[1.0, noise.get(t, 0.0)]], dtype=torch.float64)


def _loss(output: Tensor, noise: Tensor) -> Tensor:
    return (output.square() / 2 + noise * output).sum()


def responses(
    optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: Sequence[Tensor]
) -> list[Tensor]:
    """W(t) − W(t+1) for each of these gradients, which do not depend on W."""
    updates = []
    for gradient in gradients:
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
        updates.append(before - weight.detach())
    return updates
