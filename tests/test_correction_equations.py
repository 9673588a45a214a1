"""Corrections against their equations: whole runs of a toy problem with delays of 1 and 3."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import oracle
import pytest
import torch
import toy
from test_delayed_update import ADAMW, PHASES, SGD, T, expected
from torch import Tensor

from trainer.corrections.error_feedback import ErrorFeedback
from trainer.corrections.error_feedback_gradient import GradientErrorFeedback
from trainer.corrections.learning_rate import LearningRate
from trainer.corrections.taylor import Taylor
from trainer.corrections.weight_prediction import WeightPrediction
from trainer.schedules import constant_delay, pipedream, pipedream_2bw

FEEDBACK = partial(ErrorFeedback, coefficient=1.0, lag=1)


def assert_like_the_equations(tau: int, correction: Any, clip_norm: float, **options: Any) -> None:
    schedule = constant_delay(T, delay=tau, num_stages=1, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, SGD, correction, clip_norm=clip_norm)
    toy.run(executor, schedule.phases)
    history, _ = expected(
        SGD, torch.float64, lambda t: max(0, t - tau), clip_norm=clip_norm, **options
    )
    for ours, theirs in zip(toy.weights(executor), history[-1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("tau", [1, 3])
def test_error_feedback_with_the_lag_of_the_delay(tau: int) -> None:
    feedback = partial(ErrorFeedback, coefficient=0.7, lag="delay")
    assert_like_the_equations(tau, feedback, 0.5, coefficient=0.7, lag=lambda t: min(t, tau))


@pytest.mark.parametrize("tau", [1, 3])
def test_gradient_feedback(tau: int) -> None:
    def compensate(t: int, raw: list[oracle.Weights], _: list[oracle.Weights]) -> oracle.Weights:
        if t == 0:
            return raw[0]
        return [g + 0.7 * (g - before) for g, before in zip(raw[t], raw[t - 1], strict=True)]

    feedback = partial(GradientErrorFeedback, coefficient=0.7)
    assert_like_the_equations(tau, feedback, 0.5, compensate=compensate)


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_taylor(tau: int, decay: float) -> None:
    averages: list[Tensor] = []

    def compensate(
        t: int, raw: list[oracle.Weights], history: list[oracle.Weights]
    ) -> oracle.Weights:
        squares = [g**2 for g in raw[t]]
        averages[:] = [
            decay * a + (1 - decay) * s for a, s in zip(averages or squares, squares, strict=True)
        ]
        read = history[max(0, t - tau)]
        moved = [now - then for now, then in zip(history[t], read, strict=True)]
        return [g + 30 * a * m for g, a, m in zip(raw[t], averages, moved, strict=True)]

    taylor = partial(Taylor, coefficient=30.0, decay=decay)
    assert_like_the_equations(tau, taylor, 0.5, compensate=compensate)


@pytest.mark.parametrize("tau", [1, 3])
def test_weight_prediction(tau: int) -> None:
    prediction = partial(WeightPrediction, horizon=0.8)
    assert_like_the_equations(tau, prediction, 0.5, horizon=0.8 * tau)


class Anchored(WeightPrediction):
    """Predicts by u − u_0, so that the trajectory is Error Feedback's without its constant."""

    first: list[Tensor]

    def ahead(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        update = [start - weight for start, weight in zip(self._start, weights, strict=True)]
        if not hasattr(self, "first"):
            self.first = update
        return [w - 0.7 * (u - f) for w, u, f in zip(weights, update, self.first, strict=True)]


def test_error_feedback_is_weight_prediction_seen_from_the_predicted_point() -> None:
    """Gradients and updates of both are the same; W of the one is the Ŵ that the other reads."""
    optimizer = partial(ADAMW.func, **{**ADAMW.keywords, "weight_decay": 0.0})
    schedule = pipedream_2bw(T, num_stages=2, num_microbatches=3, **PHASES)
    feedback = toy.emulated(schedule, optimizer, partial(ErrorFeedback, coefficient=0.7, lag=1))
    prediction = toy.emulated(schedule, optimizer, partial(Anchored, horizon=0.7))
    losses, others = (
        [update.loss for update in toy.run(executor, (0, T))] for executor in (feedback, prediction)
    )
    assert losses == pytest.approx(others, rel=1e-12)
    seen = [ring[T % 2] for stage in prediction._stages for ring in stage.versions._ahead]
    for ours, theirs in zip(toy.weights(feedback), seen, strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prediction_is_for_late_reads_only(dtype: torch.dtype) -> None:
    """After a synchronous start, batch 3 is fresh and reads W(3), batch 4 its prediction."""
    schedule = pipedream_2bw(
        T, num_stages=1, num_microbatches=1, synchronous_start=3, synchronous_cooldown=0
    )
    make = partial(WeightPrediction, horizon=1.0)
    executor = toy.emulated(schedule, ADAMW, make, dtype=torch.float32, leaf_dtype=dtype)
    plain = toy.emulated(schedule, ADAMW, dtype=torch.float32, leaf_dtype=dtype)
    found, usual = (toy.run(one, schedule.phases) for one in (executor, plain))
    assert found[:4] == usual[:4]
    assert found[4] != usual[4]


def test_pipemare_slows_the_early_stages() -> None:
    """Delays 3, 2, 1, 0; half way to K the lr of stage s is divided by sqrt(max(τ, 1))."""
    schedule = pipedream(T, num_stages=4, num_microbatches=1, **PHASES)
    executor = toy.emulated(schedule, SGD, partial(LearningRate, anneal=2 * (T - 1)))
    toy.run(executor, (0, T))
    lrs = [stage.lr / (0.3 * toy.lr_factor(T - 1)) for stage in executor._stages]
    assert lrs == pytest.approx([3**-0.5, 2**-0.5, 1, 1])
