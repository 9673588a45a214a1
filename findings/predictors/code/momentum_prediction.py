"""Gradients at weights that are predicted along the raw momentum, the base of marin's correctors
(issue 6431 of marin-community/marin, June 2026)."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.compensation import WeightPrediction
from pipegap.trainer.corrections.none import State

DECAY = 0.95
FLOOR = 1e-12
"""Keeps quotients finite."""


class MomentumPrediction(WeightPrediction):
    """A late forward reads Ŵ = W − h r(u) m / r(m), r(x) the root of the mean square of a tensor.

    u is the last applied update, h the weight's lag, and m ← γ m + (1 − γ) g the average of the
    raw, late gradients from m = 0, γ = `DECAY`: the momentum before an optimizer orthogonalises it,
    made as large as the update. marin's `wp_preorth`.
    """

    def __init__(self, num_updates: int, lags: Sequence[int]) -> None:
        super().__init__(num_updates, lags, horizon=1.0)
        self._momentum: list[Tensor] = []

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        if not self._momentum:
            self._momentum = [torch.zeros_like(gradient) for gradient in gradients]
        torch._foreach_lerp_(self._momentum, list(gradients), 1 - DECAY)

    @override
    def ahead(self, weights: Sequence[Tensor], update: Sequence[Tensor]) -> Sequence[Tensor]:
        columns = zip(weights, self.lags, self._momentum, update, strict=True)
        return [w - self.move(w, lag, m, u) for w, lag, m, u in columns]

    def move(self, weight: Tensor, lag: int, momentum: Tensor, update: Tensor) -> Tensor:
        """What a prediction subtracts from the weight."""
        return momentum * (lag * size(update) / size(momentum))

    @override
    def num_buffers(self, lag: int) -> int:
        return 1

    @override
    def state(self) -> list[State]:
        if not self._momentum:
            return super().state()
        return [{"momentum": momentum} for momentum in self._momentum]

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._momentum = [saved["momentum"].clone() for saved in state if "momentum" in saved]


def size(tensor: Tensor) -> Tensor:
    """The root of the mean square of its entries, a scalar above 0."""
    return (tensor.square().mean() + FLOOR).sqrt()
