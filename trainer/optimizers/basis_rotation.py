"""Basis rotation (arXiv 2602.03515): Adam in the eigenbasis of averaged g gᵀ and gᵀ g."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, NonNegative, Positive
from trainer.optimizers.routing import Decay, Group, Parameters
from trainer.optimizers.together import Batched, auxiliary, beside_adamw


def adam_update(
    rotated: Tensor,
    momentum: Tensor,
    variance: Tensor,
    step: int,
    decay: float,
    variance_decay: float,
    eps: float,
) -> Tensor:
    """Adam's update of a rotated gradient, number `step` from 1; changes the moments in place."""
    momentum.lerp_(rotated, 1 - decay)
    variance.mul_(variance_decay).addcmul_(rotated, rotated, value=1 - variance_decay)
    root = (variance / (1 - variance_decay**step)).sqrt_().add_(eps)
    return momentum / (1 - decay**step) / root


def turned(basis: Tensor, average: Tensor, momentum: Tensor) -> Tensor:
    """The momentum, given by its rows in `basis`, by its rows in the eigenbasis of `average`.

    All are [matrices, n, …]; `basis`, whose columns are the vectors, becomes the new one in place.
    """
    new = torch.linalg.eigh(average).eigenvectors
    found = new.mT @ (basis @ momentum)
    basis.copy_(new)
    return found


class BasisRotation(Batched):
    """Adam of UᵀgV, turned back, for hidden matrices; U and V are renewed every few updates.

    The second moment keeps its entries when the basis is renewed: neighbouring eigenbases differ
    little, and no rotation of it is defined.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        rows, columns = (torch.zeros(n, n, dtype=matrix.dtype) for n in matrix.shape)
        of_sides = {"left": rows, "right": columns, "rows": rows, "columns": columns}
        return {
            "step": torch.zeros((), dtype=torch.int64, device=matrix.device),
            "momentum": torch.zeros_like(matrix),
            "variance": torch.zeros_like(matrix),
            **{key: value.clone().to(matrix.device) for key, value in of_sides.items()},
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


def basis_rotation(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Basis rotation for hidden matrices, AdamW for the rest.

    With its bilateral rotation, from second moments, whose eigenbases are computed exactly.
    """
    return beside_adamw(
        parameters,
        lambda groups: BasisRotation(
            groups,
            lr=lr,
            decay=momentum,
            variance_decay=variance_decay,
            precondition_every=precondition_every,
            eps=eps,
        ),
        auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps),
        weight_decay,
    )
