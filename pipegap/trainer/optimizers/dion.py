"""Dion: orthonormal updates of a part of a matrix, with error feedback in the momentum.

The first Dion, of low rank, is arXiv 2504.05295, and Dion2, of a part of the rows, arXiv
2512.16928. Dion3 is Dion2 with rows of equal size, as in NorMuon; its authors' code also calls it
NorDion2. Dion2 and Dion3 follow github.com/microsoft/dion (commit 0a059a4: dion/dion2.py,
dion/nordion2.py, dion/polar_express.py), but hold whole matrices, which that code shards, and
orthonormalise in the dtype of the weights, not in bf16.
"""

import math
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.ranges import Positive
from pipegap.trainer.optimizers.orthogonal import POLAR_EXPRESS, iterated, norms
from pipegap.trainer.optimizers.routing import Decay, Group, MatrixOptimizer, beside_adamw, keeps

Fraction = Annotated[float, Interval(gt=0, le=1)]


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
    left_basis = torch.linalg.qr(momentum @ basis).Q  # [matrices, rows, rank]
    right = momentum.mT @ left_basis  # [matrices, columns, rank]
    # Only the part of B that P spans decays: the rest is the error that feeds back.
    momentum.sub_(left_basis @ right.mT, alpha=1 - decay)
    basis.copy_(right / (right.norm(dim=-2, keepdim=True) + eps))
    rows, columns = gradient.shape[-2:]
    return (rows / columns) ** 0.5 * (left_basis @ basis.mT)


class Dion(MatrixOptimizer):
    """Applies `dion_update` to hidden matrices; the rank is ceil(fraction · shorter side)."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        """The first basis depends on the shape only: nothing is drawn from a global generator."""
        rank = math.ceil(self.defaults["rank_fraction"] * min(matrix.shape))
        basis = torch.randn(matrix.shape[1], rank, generator=torch.Generator().manual_seed(0))
        return {"momentum": torch.zeros_like(matrix), "basis": basis.to(matrix)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        return dion_update(
            gradient, state["momentum"], state["basis"], group["decay"], group["eps"]
        )


@keeps(1, in_step=3.2)
@beside_adamw
def dion(
    groups: list[Group], *, lr: Positive, momentum: Decay, rank_fraction: Fraction, eps: Positive
) -> Optimizer:
    """The first Dion for hidden matrices, AdamW for the rest."""
    return Dion(groups, lr=lr, decay=momentum, rank_fraction=rank_fraction, eps=eps)


MARGIN = 1.02
"""By how much the norm of a matrix is overestimated, so that no singular value exceeds 1."""


def orthonormal(
    rows: Tensor,  # [matrices, rows, columns]
    eps: float,
) -> Tensor:
    """Returns nearly the closest matrices with orthonormal rows, or columns if there are fewer."""
    is_tall = rows.shape[-2] > rows.shape[-1]
    x = rows / (norms(rows) * MARGIN + eps)
    x = iterated(x.mT if is_tall else x, POLAR_EXPRESS)
    return x.mT if is_tall else x


def taken(
    momentum: Tensor,  # [matrices, rows, columns], changed in place
    fraction: float,
    decay: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Returns ceil(fraction · rows) rows of each matrix, made orthonormal, and their places.

    They are the rows of the largest 1-norm, [matrices, taken, columns]. Their places,
    [matrices, taken, 1], count from 0. The momentum keeps `decay` of them.
    """
    num_taken = math.ceil(fraction * momentum.shape[-2])
    places = momentum.norm(p=1, dim=-1).topk(num_taken).indices.unsqueeze(-1)
    index = places.expand(-1, -1, momentum.shape[-1])
    rows = momentum.gather(-2, index)
    momentum.scatter_(-2, index, decay * rows)
    return orthonormal(rows, eps), places


def laid(rows: Tensor, places: Tensor, like: Tensor) -> Tensor:
    """Returns matrices of the shape of `like` with these rows at these places, and else zero."""
    return torch.zeros_like(like).scatter_(-2, places.expand_as(rows), rows)


class Dion2(MatrixOptimizer):
    """The rows of largest 1-norm of B = M + G make the update, and M keeps a share of these rows.

    W ← W − lr √(rows / columns) · orthonormal(these rows), with zeros elsewhere. Of a matrix with
    more rows than columns, columns are taken in place of rows.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(matrix)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        rows, columns = gradient.shape[-2:]
        momentum = state["momentum"].add_(gradient)
        wide = momentum.mT if rows > columns else momentum
        part = laid(*taken(wide, group["fraction"], group["decay"], group["eps"]), wide)
        return (rows / columns) ** 0.5 * (part.mT if rows > columns else part)


def evened(
    rows: Tensor,  # [matrices, rows, columns]
    variance: Tensor,  # [matrices, rows, 1], changed in place
    decay: float,
    eps: float,
) -> Tensor:
    """Divides rows by the root of their averaged mean squares; each matrix keeps its norm."""
    variance.lerp_(rows.square().mean(-1, keepdim=True), 1 - decay)
    even = rows / (variance.sqrt() + eps)
    return even * (norms(rows) / norms(even).clamp_min(eps))


class Dion3(MatrixOptimizer):
    """Dion2 that takes rows of a matrix of any shape, and evens them out as NorMuon does."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(matrix), "variance": matrix.new_zeros(len(matrix), 1)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        momentum, eps = state["momentum"].add_(gradient), group["eps"]
        rows, places = taken(momentum, group["fraction"], group["decay"], eps)
        # [matrices, taken, 1]: `gather` copies, so the averages are put back below.
        variance = state["variance"].gather(-2, places)
        rows = evened(rows, variance, group["variance_decay"], eps)
        state["variance"].scatter_(-2, places, variance)
        return (gradient.shape[-2] / gradient.shape[-1]) ** 0.5 * laid(rows, places, momentum)


@keeps(1, in_step=2.6)
@beside_adamw
def dion2(
    groups: list[Group], *, lr: Positive, momentum: Decay, fraction: Fraction, eps: Positive
) -> Optimizer:
    """Dion2 for hidden matrices, AdamW for the rest."""
    return Dion2(groups, lr=lr, decay=momentum, fraction=fraction, eps=eps)


@keeps(1, in_step=2.8)
@beside_adamw
def dion3(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    fraction: Fraction,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """Dion3 for hidden matrices, AdamW for the rest."""
    return Dion3(
        groups, lr=lr, decay=momentum, fraction=fraction, variance_decay=variance_decay, eps=eps
    )
