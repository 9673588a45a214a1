"""The references notice every mistake in a correction that was thought of: each one must differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.oracles.corrections import REFERENCES, History, Plain
from tests.support.delayed import T
from tests.support.every_correction import SETTINGS, Make, error, variants
from trainer.corrections.adaptive_error_feedback import AdaptiveErrorFeedback
from trainer.corrections.error_feedback import ErrorFeedback, Late
from trainer.corrections.error_feedback_gradient import GradientErrorFeedback
from trainer.corrections.learning_rate import LearningRate
from trainer.corrections.past import Past
from trainer.corrections.taylor import Taylor
from trainer.corrections.weight_prediction import WeightPrediction

Tensors = Sequence[Tensor]
NOTICED = 1e-6


def largest_error(make: Make, oracle: Plain) -> float:
    return max(error(make, oracle, setting) for setting in SETTINGS.values())


class Oldest(Past):
    """Takes the oldest tensor there is for the one of the age that was asked for."""

    def get(self, weight: int, age: int) -> Tensor:
        return self._past[weight][0]


class Newest(Past):
    """Takes the newest."""

    def get(self, weight: int, age: int) -> Tensor:
        return self._past[weight][-1]


class OldestUpdate(ErrorFeedback):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self._updates = Oldest("update", [self.num_buffers(lag) for lag in lags])


class OldestWeights(Taylor):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self._weights = Oldest("weight", lags)


class NewestWeights(Taylor):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self._weights = Newest("weight", lags)


class OtherSign(ErrorFeedback):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self.coefficient = -self.coefficient


class GradientOtherSign(GradientErrorFeedback):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self.coefficient = -self.coefficient


class KeepsWhatItMade(GradientErrorFeedback):
    """Compares with the gradient that was corrected, not with the raw one."""

    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        super().gradient(gradients, weights, delays)
        self._gradients.record([gradient.clone() for gradient in gradients])


class ForgetsToClamp(AdaptiveErrorFeedback):
    def _factors(self, late: Late, *of: list[Tensor]) -> Tensor:
        super()._factors(late, *of)
        averages = torch.stack([self._averages[i] for i in late])
        return self.coefficient * averages[:, 0] / averages[:, 1]


class OneMinusDecay(AdaptiveErrorFeedback):
    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self.decay = 1 - self.decay


class AbsoluteGradient(Taylor):
    """|g| for g ⊙ g."""

    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        return [gradient.abs() for gradient in gradients]


class AveragesFromZero(Taylor):
    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        self._diagonal = self._diagonal or [torch.zeros_like(g) for g in gradients]
        return super()._curvature(gradients)


class PredictsByOneUpdate(WeightPrediction):
    """Whatever the lag."""

    def __init__(self, num_updates: int, lags: Sequence[int], **options: Any) -> None:
        super().__init__(num_updates, lags, **options)
        self._horizons = [min(horizon, 1.0) for horizon in self._horizons]


class PredictsBackwards(WeightPrediction):
    def ahead(self, weights: Tensors, update: Tensors) -> Tensors:
        return super().ahead(weights, [-u for u in update])


class OneUpdateLate(LearningRate):
    def lr_factor(self, update: int, delay: int) -> float:
        return super().lr_factor(update + 1, delay)


class SlowsByTheRoot(LearningRate):
    def lr_factor(self, update: int, delay: int) -> float:
        return super().lr_factor(update, delay) ** 0.5


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("error_feedback", OldestUpdate),
        ("error_feedback", OtherSign),
        ("error_feedback_gradient", GradientOtherSign),
        ("error_feedback_gradient", KeepsWhatItMade),
        ("adaptive_error_feedback", ForgetsToClamp),
        ("adaptive_error_feedback", OneMinusDecay),
        ("taylor", OldestWeights),
        ("taylor", NewestWeights),
        ("taylor", AbsoluteGradient),
        ("taylor", AveragesFromZero),
        ("weight_prediction", PredictsByOneUpdate),
        ("weight_prediction", PredictsBackwards),
        ("learning_rate", OneUpdateLate),
        ("learning_rate", SlowsByTheRoot),
    ],
)
def test_a_wrong_correction_is_noticed(name: str, mutant: Any) -> None:
    """By at least one of the settings that its reference is tried with."""
    found = []
    for node in variants(name):
        options = {key: value for key, value in node.items() if key != "_target_"}
        oracle = REFERENCES[name](SimpleNamespace(**options), T)
        found.append(largest_error(partial(mutant, **options), oracle))
    assert max(found) > NOTICED


class DCASGDa(Taylor):
    """A correction that somebody might add: 1609.08326, λ_t = λ / √(MeanSquare_t + ε)."""

    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        squares = [gradient**2 for gradient in gradients]
        means = super()._curvature(gradients)
        return [s / self.root(mean + 1e-7) for s, mean in zip(squares, means, strict=True)]

    def root(self, mean: Tensor) -> Tensor:
        return mean.sqrt()


class WithExp(DCASGDa):
    def root(self, mean: Tensor) -> Tensor:
        return mean.exp()


class DCASGDaReference(Plain):
    """g + λ_t g ⊙ g ⊙ (W(t) − W(version)), its mean square from the first value."""

    def gradient(self, h: History, t: int) -> Tensor:
        mean = h.g[0] ** 2
        for g in h.g[1:]:
            mean = self.o.decay * mean + (1 - self.o.decay) * g**2
        strength = self.o.coefficient / (mean + 1e-7).sqrt()
        return h.g[t] + strength * h.g[t] ** 2 * (h.W[t] - h.W[t - h.delay[t]])


def test_exp_for_sqrt_is_noticed() -> None:
    options = {"coefficient": 2.0, "decay": 0.9}
    oracle = DCASGDaReference(SimpleNamespace(**options), T)
    assert largest_error(partial(DCASGDa, **options), oracle) < 1e-11
    assert largest_error(partial(WithExp, **options), oracle) > NOTICED
