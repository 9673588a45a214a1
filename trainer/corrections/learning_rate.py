"""A smaller learning rate for late gradients (PipeMare, arXiv 1910.05124, technique T1)."""

from collections.abc import Sequence
from typing import Annotated

from annotated_types import Ge
from typing_extensions import override

from pipegap.trainer.corrections.none import NoCorrection


class LearningRate(NoCorrection):
    """Divides the learning rate of update k by max(τ, 1)^(1 − min(k / K, 1)), where τ is its delay.

    K is `anneal`: an int is a number of updates, a float a share of all updates. With a delay of 1
    it changes nothing; it is meant for `pipedream`, whose stages have different delays.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        anneal: Annotated[int, Ge(0)] | Annotated[float, Ge(0)],
    ) -> None:
        super().__init__(num_updates, lags)
        self._anneal = anneal if isinstance(anneal, int) else round(anneal * num_updates)

    @override
    def lr_factor(self, update: int, delay: int) -> float:
        done = min(update / self._anneal, 1.0) if self._anneal else 1.0
        return max(delay, 1) ** (done - 1.0)
