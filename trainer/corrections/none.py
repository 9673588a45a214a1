"""Does nothing about delay; the interface that every correction implements."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class NoCorrection:
    """The plain delayed update, W(t+1) = W(t) − u_t.

    A stage calls `before` and `after` around every optimizer step, with the same parameters.
    """

    def before(self, weights: Sequence[Tensor]) -> None:
        """Sees W(t), fp32, just before the optimizer step."""

    def after(self, weights: Sequence[Tensor], delays: Sequence[int]) -> None:
        """Sees W(t) − u_t and may change it in place; `delays` counts updates, a number a weight.

        Must leave a weight whose delay is 0 as it is.
        """

    def state(self) -> list[Tensor]:
        """Tensors that a checkpoint must hold, in the order of the weights."""
        return []

    def restore(self, state: list[Tensor]) -> None:
        """Takes back what `state` gave."""
