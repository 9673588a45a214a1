"""The references notice every mistake in a correction that was thought of: each one must differ."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pipegap.trainer.corrections.compensation import LearningRate, Taylor, WeightPrediction
from pipegap.trainer.corrections.ema_nesterov import EmaNesterov
from pipegap.trainer.corrections.error_feedback import (
    AdaptiveErrorFeedback,
    ErrorFeedback,
    GradientErrorFeedback,
    Late,
)
from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.corrections.past import Past
from tests.oracles.corrections import REFERENCES, Plain
from tests.support.delayed import T
from tests.support.every_correction import SETTINGS, Make, error, variants

Tensors = Sequence[Tensor]
NOTICED = 1e-6


def largest_error(make: Make, oracle: Plain) -> float:
    return max(error(make, oracle, setting) for setting in SETTINGS.values())


class Oldest(Past):
    """Takes the oldest tensor there is for the one of the age that was asked for."""

    def get(self, weight: int, age: int) -> Tensor:
        return super().get(weight, len(self._past))


class Newest(Past):
    """Takes the newest."""

    def get(self, weight: int, age: int) -> Tensor:
        return super().get(weight, 1)


def changed(kind: Any, **attributes: Callable[[Any], Any]) -> Make:
    """The correction with other values of these attributes, made of itself."""

    def make(num_updates: int, lags: Sequence[int], **options: Any) -> NoCorrection:
        made: NoCorrection = kind(num_updates, lags, **options)
        vars(made).update({name: value(made) for name, value in attributes.items()})
        return made

    return make


def other_sign(made: Any) -> float:
    return -made.coefficient


class KeepsWhatItMade(GradientErrorFeedback):
    """Compares with the gradient that was corrected, not with the raw one."""

    def gradient(self, gradients: Tensors, weights: Tensors, delays: Sequence[int]) -> None:
        super().gradient(gradients, weights, delays)
        self._gradients.record([gradient.clone() for gradient in gradients])


class ForgetsToClamp(AdaptiveErrorFeedback):
    def _factors(self, late: Late, *tensors: list[Tensor]) -> Tensor:
        super()._factors(late, *tensors)
        averages = torch.stack([self._averages[i] for i in late])
        return self.coefficient * averages[:, 0] / averages[:, 1]


class LooksAtItsRead(EmaNesterov):
    """Averages the moves of what is read, y, for those of x."""

    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update, rate)
        torch._foreach_copy_(list(self._reached), list(weights))


class NeverRests(EmaNesterov):
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        self._ahead_at = range(self._ahead_at.start, T)
        super().look_ahead(weights, update, rate)


class IgnoresTheRate(EmaNesterov):
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update, 1.0)


class LooksOnceMore(EmaNesterov):
    """One update later than it should."""

    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        super().look_ahead(weights, update - 1, rate)


class AbsoluteGradient(Taylor):
    """|g| for g ⊙ g."""

    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        return [gradient.abs() for gradient in gradients]


class AveragesFromZero(Taylor):
    def _curvature(self, gradients: Tensors) -> list[Tensor]:
        self._diagonal = self._diagonal or [torch.zeros_like(g) for g in gradients]
        return super()._curvature(gradients)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        (
            "error_feedback",
            changed(
                ErrorFeedback,
                _updates=lambda c: Oldest("update", [c.num_buffers(lag) for lag in c.lags]),
            ),
        ),
        ("error_feedback", changed(ErrorFeedback, coefficient=other_sign)),
        ("error_feedback_gradient", changed(GradientErrorFeedback, coefficient=other_sign)),
        ("error_feedback_gradient", KeepsWhatItMade),
        ("adaptive_error_feedback", ForgetsToClamp),
        ("adaptive_error_feedback", changed(AdaptiveErrorFeedback, decay=lambda c: 1 - c.decay)),
        ("ema_nesterov", changed(EmaNesterov, decay=lambda c: 1 - c.decay)),
        ("ema_nesterov", LooksAtItsRead),
        ("ema_nesterov", NeverRests),
        ("ema_nesterov", IgnoresTheRate),
        ("ema_nesterov", LooksOnceMore),
        ("taylor", changed(Taylor, _weights=lambda c: Oldest("weight", c.lags))),
        ("taylor", changed(Taylor, _weights=lambda c: Newest("weight", c.lags))),
        ("taylor", AbsoluteGradient),
        ("taylor", AveragesFromZero),
        (
            "weight_prediction",
            changed(WeightPrediction, _horizons=lambda c: [min(h, 1.0) for h in c._horizons]),
        ),
        (
            "weight_prediction",
            changed(WeightPrediction, _horizons=lambda c: [-h for h in c._horizons]),
        ),
        (
            "learning_rate",
            changed(
                LearningRate,
                lr_factor=lambda c: lambda k, delay: LearningRate.lr_factor(c, k + 1, delay),
            ),
        ),
        (
            "learning_rate",
            changed(
                LearningRate,
                lr_factor=lambda c: lambda k, delay: LearningRate.lr_factor(c, k, delay) ** 0.5,
            ),
        ),
    ],
)
def test_a_wrong_correction_is_noticed(name: str, mutant: Any) -> None:
    """By at least one of the settings that its reference is tried with."""
    errors = []
    for node in variants(name):
        options = {key: value for key, value in node.items() if key != "_target_"}
        oracle = REFERENCES[name](SimpleNamespace(**options), T)
        errors.append(largest_error(partial(mutant, **options), oracle))
    assert max(errors) > NOTICED
