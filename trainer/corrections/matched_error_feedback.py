"""Error Feedback whose coefficient grows with the delay."""

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import override

from pipegap.trainer.corrections.error_feedback import ErrorFeedback, Late


class MatchedErrorFeedback(ErrorFeedback):
    """W(t+1) = W(t) − u_t − λ τ (u_t − u_{t−lag}), where τ is the delay of the weight's gradient.

    Error Feedback predicts the weights λ updates ahead (docs/semantics.md). A gradient that is τ
    updates old needs a prediction over τ of them: λ = 1 matches it, with a lag of 1. At a delay of
    1 this is Error Feedback.
    """

    @override
    def _factors(self, late: Late, sizes: Tensor, difference: Sequence[Tensor]) -> Tensor:
        alone = super()._factors(late, sizes, difference)
        # Numbers, not a tensor of them: on a GPU the host would wait for its copy.
        return torch.stack(torch._foreach_mul(list(alone.unbind()), list(late.values())))
