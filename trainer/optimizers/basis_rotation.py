"""Basis rotation (arXiv 2602.03515): Adam in the eigenbasis of averaged g gᵀ and gᵀ g."""

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, Positive
from trainer.optimizers.routing import Decay, Group, keeps
from trainer.optimizers.together import Batched, beside_adamw


def adam_update(
    rotated: Tensor,  # [matrices, rows, columns]
    momentum: Tensor,  # like the gradient, changed in place
    variance: Tensor,  # like the gradient, changed in place
    step: int,
    decay: float,
    variance_decay: float,
    eps: float,
) -> Tensor:
    """Returns Adam's update of a rotated gradient; `step` is the update's number, from 1."""
    momentum.lerp_(rotated, 1 - decay)
    variance.mul_(variance_decay).addcmul_(rotated, rotated, value=1 - variance_decay)
    root = (variance / (1 - variance_decay**step)).sqrt_().add_(eps)
    return momentum / (1 - decay**step) / root


def turned(
    basis: Tensor,  # [matrices, n, n], whose columns are the vectors; becomes the new basis
    average: Tensor,  # [matrices, n, n], symmetric
    momentum: Tensor,  # [matrices, n, …], with rows in `basis`
) -> Tensor:
    """Returns the momentum with rows in the eigenbasis of `average`, and of the same shape."""
    new = torch.linalg.eigh(average).eigenvectors
    rotated = new.mT @ (basis @ momentum)
    basis.copy_(new)
    return rotated


class BasisRotation(Batched):
    """Adam of UᵀgV, turned back, for hidden matrices; U and V are renewed every few updates.

    The second moment keeps its entries when the basis is renewed: neighbouring eigenbases differ
    little, and no rotation of it is defined.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        rows, columns = matrix.shape
        of_sides = {"left": rows, "right": columns, "rows": rows, "columns": columns}
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),
            "variance": torch.zeros_like(matrix),
            **{key: matrix.new_zeros(width, width) for key, width in of_sides.items()},
        }

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        share = 1 - group["variance_decay"]
        state["left"].lerp_(gradient @ gradient.mT, share)
        state["right"].lerp_(gradient.mT @ gradient, share)
        step = int(state["step"][0])  # matrices of a shape are always stepped together
        rows, columns = state["rows"], state["columns"]
        if step % group["precondition_every"] == 0:
            momentum = turned(rows, state["left"], state["momentum"])
            state["momentum"].copy_(turned(columns, state["right"], momentum.mT).mT)
        state["step"] += 1
        options = {key: group[key] for key in ("decay", "variance_decay", "eps")}
        rotated = rows.mT @ gradient @ columns
        update = adam_update(rotated, state["momentum"], state["variance"], step + 1, **options)
        return rows @ update @ columns.mT


@keeps(2, squares=2, in_step=8.4)
@beside_adamw
def basis_rotation(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """Basis rotation for hidden matrices, AdamW for the rest.

    With its bilateral rotation, from second moments, whose eigenbases are computed exactly.
    """
    return BasisRotation(
        groups,
        lr=lr,
        decay=momentum,
        variance_decay=variance_decay,
        precondition_every=precondition_every,
        eps=eps,
    )
