"""Delay compensation by a first-order Taylor expansion of the gradient (DC-ASGD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection


class Taylor(NoCorrection):
    """g̃ = g + λ D ⊙ (W(t) − W(version)), before clip and optimizer (Zheng et al., 1609.08326).

    D stands for the diagonal of the Hessian: g ⊙ g, or with `decay` > 0 its exponential average,
    which starts from the first value. The term is of order g², and so λ of order 1/‖g‖ at
    least: sweep it in decades, and read ‖g̃ − g‖/‖g‖ (`gradient_change` of the diagnostics) before
    saying that it does not help. Memory: τ fp32 buffers a weight (W(t−1) … W(t−τ)), one more with
    `decay` > 0.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        decay: Annotated[float, Interval(ge=0, lt=1)],
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient, self.decay = coefficient, decay
        self._past: list[list[Tensor]] = [[] for _ in lags]
        self._diagonal: list[Tensor] = []

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        diagonal = self._curvature(gradients)
        late = [i for i, delay in enumerate(delays) if delay > 0]
        if late:
            read = [self._past[i][-delays[i]] for i in late]
            term = torch._foreach_sub([weights[i] for i in late], read)
            torch._foreach_mul_(term, [diagonal[i] for i in late])
            torch._foreach_add_([gradients[i] for i in late], term, alpha=self.coefficient)

    def _curvature(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        squares = list(torch._foreach_mul(list(gradients), list(gradients)))
        if self.decay == 0:
            return squares
        if self._diagonal:
            torch._foreach_lerp_(self._diagonal, squares, 1 - self.decay)
        else:
            self._diagonal = squares
        return self._diagonal

    @override
    def before(self, weights: Sequence[Tensor]) -> None:
        for past, weight, lag in zip(self._past, weights, self.lags, strict=True):
            past.append(weight.clone())
            del past[: max(0, len(past) - lag)]

    @override
    def state(self) -> list[list[Tensor]]:
        return [[*self._diagonal[i : i + 1], *past] for i, past in enumerate(self._past)]

    @override
    def restore(self, state: list[list[Tensor]]) -> None:
        has_diagonal = self.decay > 0
        self._diagonal = [kept[0] for kept in state if kept] if has_diagonal else []
        self._past = [kept[has_diagonal:] for kept in state]
