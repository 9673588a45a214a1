"""What an optimizer can ask of its stage beyond the gradient of every batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Observer(Protocol):
    """An optimizer that estimates curvature from gradients against sampled labels.

    Before every `observe_every`-th update it is shown them, at the weights that the update's own
    gradient is taken at, and at the cost of one more gradient and a drain.
    """

    observe_every: int

    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Sees the mean gradient over the batch, not clipped, of each of its parameters."""
