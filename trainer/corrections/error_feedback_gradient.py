"""Error Feedback on gradients: the paper's ablation, which diverges there (arXiv 2606.30634)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from trainer.corrections.none import NoCorrection


class GradientErrorFeedback(NoCorrection):
    """g̃_t = g_t + λ (g_t − g_{t−1}), of raw averaged gradients, before clip and optimizer.

    g_t is recorded at every update; a weight is corrected where its delay is positive.
    Memory: one fp32 buffer a weight (g_{t−1}).
    """

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, coefficient: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient = coefficient
        self._previous: list[Tensor] = []

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        raw = [gradient.clone() for gradient in gradients]
        late = [i for i, delay in enumerate(delays) if delay > 0 and self._previous]
        if late:
            change = torch._foreach_sub([raw[i] for i in late], [self._previous[i] for i in late])
            torch._foreach_add_([gradients[i] for i in late], change, alpha=self.coefficient)
        self._previous = raw

    @override
    def state(self) -> list[list[Tensor]]:
        return [[gradient] for gradient in self._previous]

    @override
    def restore(self, state: list[list[Tensor]]) -> None:
        self._previous = [kept for [kept] in state]
