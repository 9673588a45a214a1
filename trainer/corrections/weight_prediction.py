"""Gradients at predicted weights: SAPipe, XPipe (1911.04610) and SpecTrain in spirit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection


class WeightPrediction(NoCorrection):
    """A late forward reads Ŵ = W − h u, u the last update that was applied, for any optimizer.

    h is `horizon` times the weight's lag: with 1, the prediction is of the weights that the
    gradient will be applied to, were all updates like the last one. Evaluation uses W itself. Error
    Feedback with λ = h is the same trajectory seen from Ŵ, but for the constant λ u_0: one method,
    and not two in a report. Memory: lag + 1 sets of leaves a weight (the predicted versions).
    """

    reads_ahead: ClassVar[bool] = True

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, horizon: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self._horizons = [horizon * lag for lag in lags]
        self._start: list[Tensor] = []

    @override
    def before(self, weights: Sequence[Tensor]) -> None:
        self._start = [weight.clone() for weight in weights]

    @override
    def ahead(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        start, self._start = self._start, []
        steps = torch._foreach_sub(list(weights), start)  # −u
        torch._foreach_mul_(steps, self._horizons)
        torch._foreach_add_(steps, list(weights))
        return steps
