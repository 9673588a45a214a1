"""Does nothing about delay; the interface that every correction implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor


class NoCorrection:
    """The plain delayed update, W(t+1) = W(t) − u_t.

    Made for a stage and its training: `num_updates` is T, `lags` how many versions behind the
    newest each weight is read while the delay is on. For every batch t the stage calls `gradient`,
    `before`, `after` and `ahead`, in this order and with the same weights; `delays` are the counted
    ones, in updates, a number a weight. Where the delay is 0 nothing may be changed.
    """

    reads_ahead: ClassVar[bool] = False
    """Whether late reads of a version see what `ahead` gave for it."""

    def __init__(self, num_updates: int, lags: Sequence[int]) -> None:
        self.num_updates, self.lags = num_updates, lags

    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        """Sees the raw gradients of batch t, averaged and not yet clipped, and W(t), fp32.

        May change the gradients in place.
        """

    def lr_factor(self, update: int, delay: int) -> float:
        """Factor on the learning rate of weights whose gradient is `delay` updates old."""
        return 1.0

    def before(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t), fp32, just before the optimizer step."""

    def after(self, weights: Sequence[Tensor], delays: Sequence[int]) -> None:
        """Sees W(t) − u_t and may change it in place."""

    def ahead(self, weights: Sequence[Tensor]) -> Sequence[Tensor]:
        """Sees W(t+1); what reads of it see that come late, if `reads_ahead`."""
        return weights

    def state(self) -> list[list[Tensor]]:
        """Tensors that a checkpoint must hold, a list a weight; empty if there are none yet."""
        return []

    def restore(self, state: list[list[Tensor]]) -> None:
        """Takes back what `state` gave."""
