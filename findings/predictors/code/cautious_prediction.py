"""A prediction along the raw momentum in the entries in which the last update agrees with it."""

from momentum_prediction import FLOOR, MomentumPrediction
from torch import Tensor
from typing_extensions import override


class CautiousPrediction(MomentumPrediction):
    """Ŵ = W − d ⊙ a / mean(a), a = 1 where m and u have one sign and 0 elsewhere, where
    `MomentumPrediction` reads W − d.

    After the cautious optimizers (arXiv 2411.16085). marin's `wp_cautious`.
    """

    @override
    def move(self, weight: Tensor, lag: int, momentum: Tensor, update: Tensor) -> Tensor:
        agrees = (momentum * update > 0).to(momentum.dtype)
        whole = super().move(weight, lag, momentum, update)
        return whole * agrees / (agrees.mean() + FLOOR)
