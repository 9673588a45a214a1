"""Error Feedback on updates (arXiv 2606.30634, Eq. 1 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection


class ErrorFeedback(NoCorrection):
    """W(t+1) = W(t) − u_t − λ (u_t − u_{t−lag}), for every delay with the lag 1.

    u_t is the whole change that the optimizer makes, learning rate and decay included. It is
    recorded at every update, delayed or not; a weight is corrected where its delay is positive and
    the earlier update is not zero (the first call of SOAP or ADOPT makes none). With lag `delay`,
    the earlier update is as old as the gradient is, which differs from 1 for a delay τ > 1.
    Memory: fp32 buffers a weight, one with the lag 1, else τ.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        lag: Literal[1, "delay"],
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient, self.lag = coefficient, lag
        self._start: list[Tensor] = []
        self._past: list[list[Tensor]] = [[] for _ in lags]

    @override
    def before(self, weights: Sequence[Tensor]) -> None:
        self._start = [weight.clone() for weight in weights]

    @override
    def after(self, weights: Sequence[Tensor], delays: Sequence[int]) -> None:
        update, self._start = self._start, []
        torch._foreach_sub_(update, list(weights))  # u_t = W(t) − (W(t) − u_t)
        ages = [delay if self.lag == "delay" else 1 for delay in delays]
        late = [i for i, delay in enumerate(delays) if delay > 0 and len(self._past[i]) >= ages[i]]
        if late:
            earlier = [self._past[i][-ages[i]] for i in late]
            self._correct(late, [weights[i] for i in late], [update[i] for i in late], earlier)
        self._record(update)

    def _correct(
        self, late: list[int], weights: list[Tensor], update: list[Tensor], earlier: list[Tensor]
    ) -> None:
        """W −= λ (u_t − u_{t−lag}) for the weights numbered `late`, without a host sync."""
        difference = list(torch._foreach_sub(update, earlier))
        factors = self._factors(late, update, earlier, difference)
        torch._foreach_mul_(difference, list(factors.unbind()))
        torch._foreach_sub_(weights, difference)

    def _factors(
        self,
        late: list[int],
        update: list[Tensor],
        earlier: list[Tensor],
        difference: list[Tensor],
    ) -> Tensor:
        """λ for each weight, or 0 where there was no earlier update."""
        largest = torch.stack(torch._foreach_norm(earlier, float("inf")))
        return (largest != 0) * torch.tensor(self.coefficient, dtype=largest.dtype)

    def _record(self, update: list[Tensor]) -> None:
        for past, new, lag in zip(self._past, update, self.lags, strict=True):
            past.append(new)
            kept = max(1, lag) if self.lag == "delay" else 1
            del past[:-kept]

    @override
    def state(self) -> list[list[Tensor]]:
        return self._past

    @override
    def restore(self, state: list[list[Tensor]]) -> None:
        self._past = state
