"""Edges of stability and noise against closed forms, numbers found before, and each other."""

import math
from typing import Any

import numpy as np
import pytest

from pipegap.analysis.theory.linear import NONE as NONE_OF
from pipegap.analysis.theory.linear import SAME, Loop, average, hooks, linear
from pipegap.analysis.theory.stability import best_strength, largest_stable, stability
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.names import declared
from tests.support import every_correction, every_optimizer

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
    settings = every_optimizer.maker(name, **changes).keywords
    return {"_target_": every_optimizer.address(name), **settings}


def limit(optimizer: dict[str, Any], correction: dict[str, Any], delay: int) -> float:
    return largest_stable(Loop(linear(optimizer), hooks(correction, delay)))


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


@pytest.mark.parametrize("name", every_optimizer.NAMES)
def test_every_optimizer_is_linear_or_refused_with_a_reason(name: str) -> None:
    if is_linear("optimizer", name):
        assert linear(node(name)).past.coef[0] == 1
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
