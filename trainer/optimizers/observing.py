"""Optimizers that look at more than the gradient of the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Observer(Protocol):
    """An optimizer that estimates curvature from gradients against sampled labels.

    It gets such gradients before every `observe_every`-th update, taken at the same weights as the
    gradient of that update. Each observation costs one more gradient and a drain.
    """

    @property
    def observe_every(self) -> int | None:
        """Updates between observations; None: it wants none."""
        ...

    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Gets the batch's mean gradient, not clipped, of each parameter."""
        ...
