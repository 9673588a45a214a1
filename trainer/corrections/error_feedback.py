"""Error Feedback on updates (arXiv 2606.30634, Eq. 1 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection


class ErrorFeedback(NoCorrection):
    """W(t+1) = W(t) − u_t − λ (u_t − u_{t−1}), the lag 1 for every delay.

    u_t is the whole change that the optimizer makes, learning rate and decay included. It is
    recorded at every update, delayed or not; a weight is corrected where its delay is positive and
    its u_{t−1} is not zero (the first update, and the first call of SOAP or ADOPT, make none).
    Memory: one fp32 buffer a weight (u_{t−1}).
    """

    def __init__(self, *, coefficient: Annotated[float, Ge(0)]) -> None:
        self.coefficient = coefficient
        self._start: list[Tensor] = []
        self._previous: list[Tensor] = []

    @override
    def before(self, weights: Sequence[Tensor]) -> None:
        self._start = [weight.clone() for weight in weights]

    @override
    def after(self, weights: Sequence[Tensor], delays: Sequence[int]) -> None:
        update, self._start = self._start, []
        torch._foreach_sub_(update, list(weights))  # u_t = W(t) − (W(t) − u_t)
        corrected = [i for i, delay in enumerate(delays) if delay > 0]
        if self._previous and corrected:
            self._correct(
                [weights[i] for i in corrected],
                [update[i] for i in corrected],
                [self._previous[i] for i in corrected],
            )
        self._previous = update

    def _correct(self, weights: list[Tensor], update: list[Tensor], previous: list[Tensor]) -> None:
        """W −= λ (u_t − u_{t−1}), without a host synchronisation; overwrites `previous`."""
        largest = torch.stack(torch._foreach_norm(previous, float("inf")))
        scale = (largest != 0) * torch.tensor(self.coefficient, dtype=largest.dtype)
        difference = torch._foreach_sub(update, previous)
        torch._foreach_mul_(difference, list(scale.unbind()))
        torch._foreach_sub_(weights, difference)

    @override
    def state(self) -> list[Tensor]:
        return self._previous

    @override
    def restore(self, state: list[Tensor]) -> None:
        self._previous = state
