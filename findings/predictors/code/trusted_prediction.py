"""A prediction along the raw momentum that goes no further than a share of its weight."""

from momentum_prediction import MomentumPrediction, size
from torch import Tensor
from typing_extensions import override

TRUST = 0.01


class TrustedPrediction(MomentumPrediction):
    """Ŵ = W − min(1, c r(W) / r(d)) d, c = `TRUST`, where `MomentumPrediction` reads W − d.

    After LARS (arXiv 1708.03888). marin's `wp_trust`.
    """

    @override
    def move(self, weight: Tensor, lag: int, momentum: Tensor, update: Tensor) -> Tensor:
        whole = super().move(weight, lag, momentum, update)
        return whole * (TRUST * size(weight) / size(whole)).clamp(max=1)
