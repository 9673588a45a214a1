"""Corrections by hand on a two-step example, identity without delay, and what they keep."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import toy
from test_delayed_update import ADAMW, PHASES, T
from torch import Tensor

from trainer.build import build
from trainer.compose import CONF, compose
from trainer.corrections.error_feedback import ErrorFeedback
from trainer.corrections.none import NoCorrection
from trainer.schedules import pipedream_2bw, sync

CHOICES = sorted(path.stem for path in (CONF / "correction").glob("*.yaml"))


def apply(correction: NoCorrection, weight: Tensor, update: float, delay: int) -> float:
    """The weight after an optimizer that subtracts `update`, and the correction."""
    correction.before([weight])
    weight -= update
    correction.after([weight], [delay])
    return float(weight)


def test_error_feedback_by_hand() -> None:
    """10 − 1 = 9; u = 3 after u = 1: 9 − 3 − 0.5 (3 − 1) = 5; u = 2: 5 − 2 + 0.5 = 3.5."""
    correction, weight = ErrorFeedback(coefficient=0.5), torch.tensor([10.0])
    steps = [(1.0, 1), (3.0, 1), (2.0, 1)]
    assert [apply(correction, weight, *step) for step in steps] == [9.0, 5.0, 3.5]


def test_an_update_is_recorded_while_there_is_no_delay() -> None:
    correction, weight = ErrorFeedback(coefficient=1.0), torch.tensor([10.0])
    assert apply(correction, weight, 1.0, delay=0) == 9.0
    assert apply(correction, weight, 2.0, delay=0) == 7.0, "no delay, no correction"
    assert apply(correction, weight, 3.0, delay=1) == 7.0 - 3.0 - (3.0 - 2.0)


def test_no_correction_after_an_update_of_nothing() -> None:
    """SOAP and ADOPT make no update at their first call."""
    correction, weight = ErrorFeedback(coefficient=1.0), torch.tensor([10.0])
    assert apply(correction, weight, 0.0, delay=1) == 10.0
    assert apply(correction, weight, 2.0, delay=1) == 8.0
    assert apply(correction, weight, 1.0, delay=1) == 8.0 - 1.0 - (1.0 - 2.0)


def test_only_delayed_weights_are_corrected() -> None:
    correction = ErrorFeedback(coefficient=1.0)
    weights = [torch.tensor([10.0]), torch.tensor([10.0])]
    for update in (1.0, 2.0):
        correction.before(weights)
        torch._foreach_sub_(weights, update)
        correction.after(weights, [0, 1])
    assert [float(weight) for weight in weights] == [7.0, 6.0]


@pytest.mark.parametrize("choice", CHOICES)
def test_every_correction_is_the_identity_without_delay(choice: str) -> None:
    schedule = sync(T, num_stages=2, num_microbatches=3)
    make = partial(build, compose([f"correction={choice}"])["correction"])
    corrected, plain = toy.emulated(schedule, ADAMW, make), toy.emulated(schedule, ADAMW)
    assert toy.run(corrected, (0, T)) == toy.run(plain, (0, T))
    for ours, theirs in zip(toy.weights(corrected), toy.weights(plain), strict=True):
        assert torch.equal(ours, theirs)


def test_a_coefficient_of_zero_is_the_plain_delay() -> None:
    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=3, **PHASES)
    zero = toy.emulated(schedule, ADAMW, partial(ErrorFeedback, coefficient=0.0))
    plain = toy.emulated(schedule, ADAMW)
    assert toy.run(zero, (0, T)) == toy.run(plain, (0, T))


def test_error_feedback_keeps_one_buffer_a_weight() -> None:
    correction, weights = ErrorFeedback(coefficient=1.0), [torch.ones(3, 4), torch.ones(5)]
    for _ in range(3):
        correction.before(weights)
        correction.after(weights, [1, 1])
    kept = [value for value in vars(correction).values() if isinstance(value, list) and value]
    assert [[tensor.shape for tensor in tensors] for tensors in kept] == [[(3, 4), (5,)]]
