"""Orthogonalised momentum, with refinements of Muon that can each be left out.

They are those of nanochat (karpathy/nanochat, nanochat/optim.py at 92d63d4), whose optimizer has
them all.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.ranges import Count, Positive
from pipegap.trainer.optimizers.routing import (
    Decay,
    Group,
    MatrixOptimizer,
    beside_adamw,
    decay_cautiously,
    keeps,
    multiplies,
    newton_schulz,
)

Coefficients = tuple[float, float, float]
"""Of x, x³ and x⁵, where x is a singular value."""
Orthogonalisation = Literal["newton_schulz", "quintic", "polar_express", "convergent"]


class Iteration(NamedTuple):
    """Polynomials that drive singular values to 1, one per step; a single one is repeated.

    Before the first step a matrix is divided by margin · its Frobenius norm + eps.
    """

    polynomials: tuple[Coefficients, ...]
    margin: float
    eps: float


JORDAN = (3.4445, -4.7750, 2.0315)
CONVERGENT = (2.0, -1.5, 0.5)
QUINTIC = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
ITERATIONS: Mapping[Orthogonalisation, Iteration] = {
    "newton_schulz": Iteration((JORDAN,), margin=1.0, eps=1e-7),
    "quintic": Iteration(QUINTIC, margin=1.0, eps=1e-8),
    "polar_express": Iteration(POLAR_EXPRESS, margin=1.01, eps=1e-6),
    "convergent": Iteration((CONVERGENT,), margin=1.0, eps=1e-7),
}
"""`newton_schulz` is Muon's (Jordan 2024). `quintic` is marin's (lib/levanter/src/levanter/optim/
util.py at 054a715). `polar_express` has the minimax polynomials of arXiv 2505.16932 for singular
values from 0.001 on, with nanochat's numbers: five steps, a cushion of 0.02, and a safety factor of
1.02 in all steps but the last. `convergent` is that of modded-nanogpt's track 3, which takes twelve
steps: it starts more slowly than the others, and converges to 1.
"""


def polynomials(name: Orthogonalisation, num_steps: int) -> tuple[Coefficients, ...]:
    """The polynomials of the steps; raises BadInput for more steps than there are polynomials."""
    coefficients = ITERATIONS[name].polynomials
    if len(coefficients) == 1:
        return coefficients * num_steps
    if num_steps > len(coefficients):
        allowed = f"must be at most {len(coefficients)} with optimizer.orthogonalisation={name}"
        raise BadInput("optimizer.newton_schulz_steps", num_steps, allowed)
    return coefficients[:num_steps]


def norms(matrices: Tensor) -> Tensor:
    """The Frobenius norm of each matrix [matrices, rows, columns], as [matrices, 1, 1]."""
    return matrices.norm(dim=(-2, -1), keepdim=True)


def fourth_norms(matrices: Tensor) -> Tensor:
    """(Σ σ⁴)^¼ of each matrix, as [matrices, 1, 1], where σ are its singular values.

    It is a closer bound of the largest of them than the Frobenius norm.
    """
    # The Frobenius norm of the smaller Gram matrix is √(Σ σ⁴).
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    return norms(matrices.mT @ matrices if is_tall else matrices @ matrices.mT).sqrt()


def orthogonalised(matrices: Tensor, name: Orthogonalisation, num_steps: int) -> Tensor:
    """Nearly the closest matrices [matrices, rows, columns] with orthonormal rows or columns.

    The computation is in the dtype of the matrices, but in bf16 for fp32 on a GPU.
    """
    _, margin, eps = ITERATIONS[name]
    return driven(matrices, lambda x: norms(x) * margin + eps, polynomials(name, num_steps))


def driven(
    matrices: Tensor,  # [matrices, rows, columns]
    bound: Callable[[Tensor], Tensor],  # of the singular values of each matrix, [matrices, 1, 1]
    coefficients: Sequence[Coefficients],
) -> Tensor:
    """`orthogonalised` by any polynomials, from matrices that are divided by any `bound`."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    is_halved = matrices.is_cuda and matrices.dtype == torch.float32
    x = matrices.bfloat16() if is_halved else matrices
    x = x / bound(x)  # the polynomials need singular values of at most 1
    x = iterated(x.mT if is_tall else x, coefficients)
    return (x.mT if is_tall else x).to(matrices.dtype)


def iterated(wide: Tensor, coefficients: Sequence[Coefficients]) -> Tensor:
    """Applies odd polynomials to the singular values of matrices [matrices, rows, columns]."""
    for first, third, fifth in coefficients:
        gram = wide @ wide.mT  # [matrices, rows, rows]: the shorter side, as the matrix is wide
        wide = first * wide + (third * gram + fifth * (gram @ gram)) @ wide
    return wide


def equilibrated(matrices: Tensor) -> Tensor:
    """Gives the rows of a matrix one length and keeps its norm (MuonEq, arXiv 2603.28254)."""
    rows = matrices.norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return matrices * (norms(matrices) / matrices.shape[-2] ** 0.5 / rows)


def renormalised(matrices: Tensor) -> Tensor:
    """Gives matrices the norm √min(rows, columns) of orthogonal ones (Muon+, arXiv 2602.21545)."""
    return matrices * (min(matrices.shape[-2:]) ** 0.5 / norms(matrices).clamp_min(1e-6))


def evened(matrices: Tensor, variance: Tensor, decay: float) -> Tensor:
    """Divides by the root of `variance` and keeps the norm (NorMuon, arXiv 2510.05491).

    `variance` is averaged in place: the mean square of each row, [matrices, rows, 1], or of each
    column, [matrices, 1, columns].
    """
    along = -1 if variance.shape[-1] == 1 else -2
    variance.lerp_(matrices.square().mean(along, keepdim=True), 1 - decay)
    even = matrices * variance.clamp_min(1e-10).rsqrt()  # nanochat's floors, here and below
    return even * (norms(matrices) / norms(even).clamp_min(1e-10))


class Orthogonal(MatrixOptimizer):
    """Updates of hidden matrices by their momentum, orthogonalised.

    A `variance_decay` that is not None evens out the rows of a matrix, or the columns of a wide
    matrix, as nanochat does. NorMuon's paper evens out rows alone.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: float,
        decay: float,
        nesterov: bool,
        orthogonalisation: Orthogonalisation,
        steps: int,
        equilibrate: bool = False,
        renormalise: bool = False,
        variance_decay: float | None = None,
    ) -> None:
        polynomials(orthogonalisation, steps)  # raises for too many steps
        super().__init__(
            groups,
            lr=lr,
            decay=decay,
            nesterov=nesterov,
            orthogonalisation=orthogonalisation,
            steps=steps,
            equilibrate=equilibrate,
            renormalise=renormalise,
            variance_decay=variance_decay,
        )

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        state = {"momentum": torch.zeros_like(matrix)}
        variance_decay = self.defaults["variance_decay"]
        if variance_decay is not None:
            rows, columns = matrix.shape
            shape = (rows, 1) if rows >= columns else (1, columns)
            state["variance"] = matrix.new_zeros(shape)
        return state

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        momentum = state["momentum"].lerp_(gradient, 1 - group["decay"])
        direction = gradient.lerp(momentum, group["decay"]) if group["nesterov"] else momentum
        if group["equilibrate"]:
            direction = equilibrated(direction)
        update = orthogonalised(direction, group["orthogonalisation"], group["steps"])
        if group["renormalise"]:
            update = renormalised(update)
        variance_decay = group["variance_decay"]
        if variance_decay is not None:
            update = evened(update, state["variance"], variance_decay)
        return update


class Nanochat(Orthogonal):
    """Multiplies the learning rate of tall matrices, for update and decay, by √(rows / columns)."""

    def __init__(self, groups: list[Group], *, cautious_decay: bool, **options: Any) -> None:
        super().__init__([{**group, "is_cautious": cautious_decay} for group in groups], **options)

    @override
    def move(self, group: Group, weights: list[Tensor], update: Tensor) -> None:
        rows, columns = update.shape[-2:]
        lr = group["lr"] * max(1.0, rows / columns) ** 0.5
        updates, share = list(update.unbind()), lr * group["weight_decay"]
        if group["is_cautious"]:
            decay_cautiously(weights, updates, share)
        else:
            torch._foreach_mul_(weights, 1 - share)
        torch._foreach_add_(weights, updates, alpha=-lr)


@keeps(1, in_step=3.9)
@multiplies(newton_schulz)
@beside_adamw
def nanochat(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    equilibrate_rows: bool,
    orthogonalisation: Orthogonalisation,
    newton_schulz_steps: Count,
    renormalise: bool,
    second_moment: bool,
    cautious_decay: bool,
    variance_decay: Decay,
) -> Optimizer:
    """nanochat's for hidden matrices, AdamW for the rest.

    Muon with rows of one length (MuonEq), Polar Express, the norm of orthogonal matrices (Muon+),
    a second moment (NorMuon) and cautious decay, in this order. Each is a key; without any of them
    it is Muon in its original scaling.
    """
    return Nanochat(
        groups,
        lr=lr,
        decay=momentum,
        nesterov=nesterov,
        equilibrate=equilibrate_rows,
        orthogonalisation=orthogonalisation,
        steps=newton_schulz_steps,
        renormalise=renormalise,
        variance_decay=variance_decay if second_moment else None,
        cautious_decay=cautious_decay,
    )
