"""The first Dion (arXiv 2504.05295): orthonormal updates of low rank, with error feedback."""

import math
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Positive
from trainer.optimizers.routing import Decay, Group, keeps
from trainer.optimizers.together import Batched, beside_adamw


def dion_update(
    gradient: Tensor,  # [matrices, rows, columns]
    momentum: Tensor,  # [matrices, rows, columns], changed in place
    basis: Tensor,  # [matrices, columns, rank], changed in place
    decay: float,
    eps: float,
) -> Tensor:
    """Returns the update, of the gradient's shape.

    One power iteration: P = orthonormal(B Q) and R = Bᵀ P with B = M + G. Then, in place,
    M ← B − (1 − decay) P Rᵀ and Q ← R with columns of norm 1. The update is √(rows / columns) P Qᵀ.
    """
    momentum.add_(gradient)
    left = torch.linalg.qr(momentum @ basis).Q
    right = momentum.mT @ left
    momentum.sub_(left @ right.mT, alpha=1 - decay)
    basis.copy_(right / (right.norm(dim=-2, keepdim=True) + eps))
    rows, columns = gradient.shape[-2:]
    return (rows / columns) ** 0.5 * (left @ basis.mT)


class Dion(Batched):
    """Applies `dion_update` to hidden matrices; the rank is ceil(fraction · shorter side)."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        """The first basis depends on the shape only: nothing is drawn from a global generator."""
        rank = math.ceil(self.defaults["rank_fraction"] * min(matrix.shape))
        drawn = torch.randn(matrix.shape[1], rank, generator=torch.Generator().manual_seed(0))
        return {"momentum": torch.zeros_like(matrix), "basis": drawn.to(matrix)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        return dion_update(
            gradient, state["momentum"], state["basis"], group["decay"], group["eps"]
        )


@keeps(1, in_step=3.2)
@beside_adamw
def dion(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    rank_fraction: Annotated[float, Interval(gt=0, le=1)],
    eps: Positive,
) -> Optimizer:
    """The first Dion for hidden matrices, AdamW for the rest."""
    return Dion(groups, lr=lr, decay=momentum, rank_fraction=rank_fraction, eps=eps)
