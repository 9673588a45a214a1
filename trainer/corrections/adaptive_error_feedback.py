"""Error Feedback whose λ follows how well successive updates agree (beyond arXiv 2606.30634)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.error_feedback import ErrorFeedback, Late
from pipegap.trainer.corrections.none import State


class AdaptiveErrorFeedback(ErrorFeedback):
    """W(t+1) = W(t) − u_t − λ_t (u_t − u_{t−1}) with its own λ_t for each weight tensor.

    Error Feedback takes its gradients at weights that lie λ u_{t−1} ahead of the plain sum of the
    updates, so it predicts that u_t = λ u_{t−1}. The λ that predicts u_t best in the sense of least
    squares is ⟨u_t, u_{t−1}⟩ / ‖u_{t−1}‖²; hence

        λ_t = coefficient · clamp(a_t / b_t, 0, 1),
        a_t, b_t = running averages (`decay`) of ⟨u_t, u_{t−1}⟩ and ‖u_{t−1}‖².

    Updates that repeat each other (high momentum) give λ → coefficient, unrelated ones λ → 0.
    The inner product is computed from three norms, 2⟨u, v⟩ = ‖u‖² + ‖v‖² − ‖u − v‖²; Error Feedback
    has these tensors anyway. The state is that of Error Feedback and, for each weight tensor,
    "agreement": the two numbers a_t and b_t.
    """

    def __init__(
        self,
        num_updates: int,
        lags: Sequence[int],
        *,
        coefficient: Annotated[float, Ge(0)],
        decay: Annotated[float, Interval(ge=0, lt=1)],
    ) -> None:
        super().__init__(num_updates, lags, coefficient=coefficient, lag=1)
        self.decay = decay
        self._averages: dict[int, Tensor] = {}

    @override
    def look_back(self, delays: Sequence[int]) -> None:
        """Sends nothing: the factors need this update too."""

    @override
    def _sizes(self, update: Sequence[Tensor], earlier: Sequence[Tensor]) -> Tensor:
        """‖u_t‖² and ‖u_{t−1}‖² of each weight, [2, weights]."""
        return torch.stack([_squares(update), _squares(earlier)])

    @override
    def _factors(self, late: Late, sizes: Tensor, difference: Sequence[Tensor]) -> Tensor:
        of_update, of_earlier = sizes
        products = (of_update + of_earlier - _squares(difference)) / 2
        for i, new in zip(late, torch.stack([products, of_earlier], dim=1), strict=True):
            # Both averages start from their first values: their ratio needs no bias correction.
            self._averages[i] = new.lerp(self._averages.get(i, new), self.decay)
        averages = torch.stack([self._averages[i] for i in late])
        agreement = (averages[:, 0] / averages[:, 1]).nan_to_num(0.0).clamp(0, 1)
        return self.coefficient * agreement * (of_earlier != 0)

    @override
    def state(self) -> list[State]:
        averages = self._averages
        return [
            {**past, **({"agreement": averages[i]} if i in averages else {})}
            for i, past in enumerate(super().state())
        ]

    @override
    def restore(self, state: Sequence[State]) -> None:
        super().restore(state)
        self._averages = {
            i: saved["agreement"] for i, saved in enumerate(state) if "agreement" in saved
        }


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch._foreach_norm(list(tensors))).square()
