"""Corrections by hand, and how they relate to each other; test_conformance.py has the equations."""

from functools import partial

import pytest
import torch
from torch import Tensor

from pipegap.trainer.corrections.error_feedback import (
    AdaptiveErrorFeedback,
    ErrorFeedback,
)
from pipegap.trainer.corrections.none import NoCorrection
from tests.support.delayed import T

FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)


def apply(
    correction: NoCorrection, weight: Tensor, update: float, delay: int, looks_back: bool = False
) -> float:
    """The weight after an optimizer that subtracts `update`, and the correction."""
    if looks_back:  # as on a GPU
        correction.look_back([delay])
    weight -= update
    correction.apply([weight], [torch.full_like(weight, update)], [delay])
    return float(weight)


ADAPTIVE = partial(AdaptiveErrorFeedback, coefficient=1.0, decay=0.0)


@pytest.mark.parametrize("looks_back", [False, True])
@pytest.mark.parametrize(
    ("make", "lag", "steps", "weights"),
    [
        # 10 − 1; 9 − 3 − 0.5 (3 − 1); 5 − 2 − 0.5 (2 − 3)
        (partial(FEEDBACK, coefficient=0.5), 1, [(1, 1), (3, 1), (2, 1)], [9, 5, 3.5]),
        # 10 − 1; 9 − 2 − (2 − 1); then two updates back: 6 − 4 − (4 − 1); −1 − 3 − (3 − 2)
        (partial(FEEDBACK, lag="delay"), 2, [(1, 0), (2, 1), (4, 2), (3, 2)], [9, 6, -1, -5]),
        # Without a delay an update is recorded, and nothing is corrected: then 7 − 3 − (3 − 2).
        (FEEDBACK, 1, [(1, 0), (2, 0), (3, 1)], [9, 7, 3]),
        # SOAP and ADOPT make no update at their first call: nothing is corrected after it.
        (FEEDBACK, 1, [(0, 1), (2, 1), (1, 1)], [10, 8, 8]),
        (partial(FEEDBACK, lag="delay"), 2, [(0, 2), (2, 2), (3, 2)], [10, 8, 5]),
        # No memory: λ = u / v for an update u after v, between 0 and 1: 0.5, −1 → 0, 3 → 1.
        (ADAPTIVE, 1, [(2, 1), (1, 1), (-1, 1), (-3, 1)], [8, 7.5, 8.5, 13.5]),
        # Averages of u v and v²: (2, 1) → λ = 0.5; (−1, 2.5) → 0; (0.5, 3.25) → λ = 0.5 · 2 / 13.
        (
            partial(ADAPTIVE, coefficient=0.5, decay=0.5),
            1,
            [(1, 1), (2, 1), (-2, 1), (-1, 1)],
            [9, 6.5, 8.5, 9.5 - 0.5 * 2 / 13],
        ),
    ],
)
def test_corrected_updates_by_hand(
    make: partial[NoCorrection],
    lag: int,
    steps: list[tuple[float, int]],
    weights: list[float],
    looks_back: bool,
) -> None:
    """The weights from 10 on, after updates with their delays."""
    correction, weight = make(T, [lag]), torch.tensor([10.0])
    ends = [apply(correction, weight, *step, looks_back=looks_back) for step in steps]
    assert ends == pytest.approx(weights)


def test_an_update_of_a_part_of_a_weight_is_one() -> None:
    """A first entry that stays, as of a token that no batch has, is no sign of a zero update."""
    correction, weights = FEEDBACK(T, [1]), [torch.tensor([10.0, 10.0])]
    for update in ([0.0, 1.0], [2.0, 3.0]):
        step = [torch.tensor(update)]
        weights[0] -= step[0]
        correction.apply(weights, step, [1])
    # 10 − 0 − 2 − (2 − 0); 10 − 1 − 3 − (3 − 1)
    assert weights[0].tolist() == [6.0, 4.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_feedback_rounds_as_its_equation_does(dtype: torch.dtype) -> None:
    """To the last bit: the difference, then λ times it, then the weight; no product is fused."""
    torch.manual_seed(0)
    steps = [torch.randn(4, 33).mul_(1e-3).to(dtype) for _ in range(6)]
    weight = torch.randn(4, 33).to(dtype)
    correction, expected = ErrorFeedback(T, [1], coefficient=0.7, lag=1), weight.clone()
    for t, step in enumerate(steps):
        weight -= step
        correction.apply([weight], [step.clone()], [1])
        expected = expected - step
        if t:
            expected = expected - 0.7 * (step - steps[t - 1])
        assert torch.equal(weight, expected)


def test_a_restored_correction_leaves_the_state_alone_that_it_was_given() -> None:
    """It overwrites what it remembers; the state may be another one's, or a file's."""
    first, weight = FEEDBACK(T, [1]), torch.tensor([10.0])
    apply(first, weight, 1.0, delay=1)
    second, other = FEEDBACK(T, [1]), weight.clone()
    second.restore(first.state())
    assert apply(second, other, 3.0, delay=1) == 9.0 - 3.0 - (3.0 - 1.0)
    assert apply(first, weight, 2.0, delay=1) == 9.0 - 2.0 - (2.0 - 1.0)
