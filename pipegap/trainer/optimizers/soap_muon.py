"""SOAP-Muon: Muon's orthogonalisation of a momentum that SOAP's bases have whitened."""

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from pipegap.trainer.base.ranges import Count, Positive
from pipegap.trainer.optimizers.orthogonal import (
    Orthogonalisation,
    driven,
    fourth_norms,
    polynomials,
)
from pipegap.trainer.optimizers.routing import (
    Decay,
    Group,
    MatrixOptimizer,
    beside_adamw,
    eigenbases,
    keeps,
    multiplies,
    newton_schulz,
)

SMALLEST = 1e-7
"""The smallest bound of singular values that a division takes."""


def renewed(
    basis: Tensor,  # [matrices, n, n], whose columns are the vectors
    average: Tensor,  # [matrices, n, n], symmetric
) -> tuple[Tensor, Tensor]:
    """Returns the basis after one power iteration, and the order that its vectors were put in.

    The order, [matrices, n], is that of falling vᵀ average v.
    """
    # vᵀ average v of each column v; `qr` keeps the order of the columns.
    order = (basis * (average @ basis)).sum(-2).argsort(-1, descending=True)
    ordered = basis.gather(-1, order.unsqueeze(-2).expand_as(basis))
    return torch.linalg.qr(average @ ordered).Q, order


class SoapMuon(MatrixOptimizer):
    """Muon of a momentum that is divided, in SOAP's bases, by its averaged root mean square.

    P = Uᵀ M V, N ← β N + (1 − β) P², and W ← W − lr √max(1, rows / columns) · orthogonalised(
    U (P / √N) Vᵀ); U and V are eigenvectors of averaged g gᵀ and gᵀ g of the updates before. The
    first update is Muon's, and its gradient starts the bases.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        assert matrix.grad is not None
        share = 1 - self.defaults["variance_decay"]
        left_gram = share * (matrix.grad @ matrix.grad.T)
        right_gram = share * (matrix.grad.T @ matrix.grad)
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),
            "variance": torch.zeros_like(matrix),  # in the bases
            "left": left_gram,
            "right": right_gram,
            # `eigh` sorts by rising eigenvalues.
            "rows": torch.linalg.eigh(left_gram).eigenvectors.flip(-1),
            "columns": torch.linalg.eigh(right_gram).eigenvectors.flip(-1),
        }

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        momentum = state["momentum"].lerp_(gradient, 1 - group["decay"])
        direction = gradient.lerp(momentum, group["decay"]) if group["nesterov"] else momentum
        step = int(state["step"][0])  # matrices of a shape are always stepped together
        state["step"] += 1
        # The first update is Muon's: `start` made the bases of this very gradient. Later ones are
        # whitened in the bases of the updates before, so the averages follow.
        if step > 0:
            direction = self.whitened(group, gradient, direction, state)
            state["left"].lerp_(gradient @ gradient.mT, 1 - group["variance_decay"])
            state["right"].lerp_(gradient.mT @ gradient, 1 - group["variance_decay"])
            if step % group["precondition_every"] == 0:
                self._renew(state)
        coefficients = polynomials(group["orthogonalisation"], group["steps"])
        update = driven(direction, lambda x: fourth_norms(x).clamp_min(SMALLEST), coefficients)
        return update * max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5

    def whitened(
        self, group: Group, gradient: Tensor, direction: Tensor, state: dict[str, Tensor]
    ) -> Tensor:
        """The matrix that is orthogonalised in place of `direction`, of the gradient's shape."""
        rows, columns, decay = state["rows"], state["columns"], group["variance_decay"]
        rotated = rows.mT @ direction @ columns
        variance = state["variance"].mul_(decay).addcmul_(rotated, rotated, value=1 - decay)
        return rows @ (rotated / variance.sqrt().clamp_min(group["eps"])) @ columns.mT

    def _renew(self, state: dict[str, Tensor]) -> None:
        """Takes both bases one power iteration further; the second moment is put in their order."""
        rows, row_order = renewed(state["rows"], state["left"])
        columns, column_order = renewed(state["columns"], state["right"])
        variance = state["variance"]
        variance = variance.gather(-2, row_order.unsqueeze(-1).expand_as(variance))
        variance = variance.gather(-1, column_order.unsqueeze(-2).expand_as(variance))
        for key, value in (("rows", rows), ("columns", columns), ("variance", variance)):
            state[key].copy_(value)


def bases_and_iterations(rows: int, columns: int) -> float:
    """FLOPs of a step in bases, and of twelve iterations of Newton-Schulz."""
    return eigenbases(rows, columns) + 12 / 5 * newton_schulz(rows, columns)


@keeps(2, squares=2, in_step=8)
@multiplies(bases_and_iterations)
@beside_adamw
def soap_muon(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    precondition_every: Count,
    orthogonalisation: Orthogonalisation,
    newton_schulz_steps: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """SOAP-Muon (Vyas 2025), as modded-nanogpt's records have it since result 44, for hidden
    matrices; AdamW for the rest.

    It leaves out what those runs add: a gate of trust on attention's output, floors and brakes of
    the norm, look-ahead. It differs from Vyas' own code (github.com/nikhilvyas/SOAP_MUON), which
    takes the second moment of the gradient, whitens one side, and takes roots of entries.
    """
    polynomials(orthogonalisation, newton_schulz_steps)  # raises for too many steps
    return SoapMuon(
        groups,
        lr=lr,
        decay=momentum,
        nesterov=nesterov,
        precondition_every=precondition_every,
        orthogonalisation=orthogonalisation,
        steps=newton_schulz_steps,
        variance_decay=variance_decay,
        eps=eps,
    )
