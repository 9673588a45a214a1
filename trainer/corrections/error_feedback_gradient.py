"""Error Feedback on gradients: the paper's ablation, which diverges there (arXiv 2606.30634)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.none import NoCorrection, State
from pipegap.trainer.corrections.past import Past


class GradientErrorFeedback(NoCorrection):
    """g̃_t = g_t + λ (g_t − g_{t−1}), of raw averaged gradients, before clip and optimizer.

    λ is `coefficient`. g_t is recorded at every update; a weight is corrected where its delay is
    positive.
    """

    def __init__(
        self, num_updates: int, lags: Sequence[int], *, coefficient: Annotated[float, Ge(0)]
    ) -> None:
        super().__init__(num_updates, lags)
        self.coefficient = coefficient
        self._gradients = Past("gradient", [1] * len(lags))

    @override
    def gradient(
        self, gradients: Sequence[Tensor], weights: Sequence[Tensor], delays: Sequence[int]
    ) -> None:
        raw = [gradient.clone() for gradient in gradients]
        late = [i for i, delay in enumerate(delays) if delay > 0 and self._gradients.has(i, 1)]
        if late:
            earlier = [self._gradients.get(i, 1) for i in late]
            change = torch._foreach_sub([raw[i] for i in late], earlier)
            torch._foreach_add_([gradients[i] for i in late], change, alpha=self.coefficient)
        self._gradients.record(raw)

    @override
    def num_buffers(self, lag: int) -> int:
        return 1

    @override
    def state(self) -> list[State]:
        return self._gradients.state()

    @override
    def restore(self, state: Sequence[State]) -> None:
        self._gradients.restore(state)
