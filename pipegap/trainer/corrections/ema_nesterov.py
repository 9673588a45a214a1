"""EMA-Nesterov (arXiv 2605.25395): gradients at weights that lie ahead along the trend of the
trajectory, around any optimizer, late or not, with Error Feedback inside or without."""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Interval
from typing_extensions import override

from pipegap.trainer.base.flat import local
from pipegap.trainer.corrections.error_feedback import ErrorFeedback
from pipegap.trainer.corrections.none import State, Tensors

Phase = Annotated[int, Ge(0)] | Annotated[float, Interval(ge=0, le=1)]
"""A number of updates, or a share of all of them."""


class EmaNesterov(ErrorFeedback):
    """y(t+1) = x(t+1) + β_{t+1} m(t+1), read and stepped from; x is evaluated.

    x(t+1) = A(y(t)), where A is the optimizer's step and, of a late gradient, Error Feedback with λ
    = `coefficient` (0: none). m(t+1) = γ m(t) + (1 − γ) (x(t+1) − x(t)) from m(0) = 0, γ = `decay`.
    β_{t+1} is `look_ahead` times the learning rate of update t as a share of its peak, as in the
    authors' record of modded-nanogpt's track 3 (result 39). It is 0 for the first `start` updates,
    which are too few for a trend, and for the last `rest`.
    """

    looks_ahead: ClassVar[bool] = True

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        look_ahead: Annotated[float, Ge(0)],
        decay: Annotated[float, Interval(ge=0, lt=1)],
        start: Phase,
        rest: Phase,
        coefficient: Annotated[float, Ge(0)],
    ) -> None:
        super().__init__(num_updates, lags, coefficient=coefficient, lag=1)
        self.step_size, self.decay = look_ahead, decay
        first, last = (
            phase if isinstance(phase, int) else round(phase * num_updates)
            for phase in (start, rest)
        )
        self._ahead_at = range(first, num_updates - last)
        self._reached: Tensors = []
        self._trend: Tensors = []

    @override
    def apply(self, weights: Tensors, update: Tensors, delays: Sequence[int]) -> None:
        if not self._reached:  # x(0) = W(0), but `weights` is already W(0) − u_0
            self._reached = torch._foreach_add(list(weights), list(update))
            self._trend = [torch.zeros_like(weight) for weight in weights]
        super().apply(weights, update, delays)

    @override
    def graph_factor(self) -> Callable[[int], float] | None:
        # Not idle: it counts only where the class itself defines it. `apply` adds x(0) alone.
        return super().graph_factor()

    @override
    def look_ahead(self, weights: Tensors, update: int, rate: float) -> None:
        reached, trend = list(self._reached), list(self._trend)  # x(t), m(t)
        moves = torch._foreach_sub(list(weights), reached)
        torch._foreach_mul_(trend, self.decay)
        torch._foreach_add_(trend, moves, alpha=1 - self.decay)
        torch._foreach_copy_(reached, list(weights))
        # In place from here on `weights` is y(t+1); x(t+1) lies in `reached`.
        if update + 1 in self._ahead_at:
            torch._foreach_add_(list(weights), trend, alpha=self.step_size * rate)

    @override
    def evaluated(self, weights: Tensors) -> Tensors:
        pairs = zip(weights, self._reached or weights, strict=True)
        # Where y equals x, the weight itself: its parameter stays the one that others hold.
        return [weight if torch.equal(local(weight), local(x)) else x for weight, x in pairs]

    @override
    def num_buffers(self, lag: int) -> int:
        return 3  # the last update, x and m

    @override
    def state(self) -> list[State]:
        updates = super().state()
        if not self._reached:
            return updates
        rows = zip(updates, self._reached, self._trend, strict=True)
        return [{**update, "reached": x, "trend": m} for update, x, m in rows]

    @override
    def restore(self, state: Sequence[State]) -> None:
        super().restore(state)
        self._reached = [saved["reached"].clone() for saved in state if "reached" in saved]
        self._trend = [saved["trend"].clone() for saved in state if "trend" in saved]
