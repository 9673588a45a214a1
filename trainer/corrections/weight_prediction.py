"""Gradients at predicted weights: SAPipe, XPipe (1911.04610) and SpecTrain in spirit."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.none import NoCorrection


class WeightPrediction(NoCorrection):
    """A late forward reads Ŵ = W − h u, where u is the last applied update of any optimizer.

    h is `horizon` times the weight's lag. With a horizon of 1, Ŵ are the weights that the gradient
    will be applied to if all updates equal the last one. Evaluation uses W itself. Error Feedback
    with λ = h has the same trajectory seen from Ŵ, except for the constant λ u_0, so a report
    counts the two as one method.
    """

    needs_update: ClassVar[bool] = True
    reads_ahead: ClassVar[bool] = True

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, horizon: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self._horizons = [horizon * lag for lag in lags]

    @override
    def ahead(self, weights: Sequence[Tensor], update: Sequence[Tensor]) -> Sequence[Tensor]:
        further = torch._foreach_mul(list(update), self._horizons)
        return torch._foreach_sub(list(weights), further)
