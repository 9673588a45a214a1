"""KL-SOAP (arXiv 2509.03378): SOAP whose factors minimise a Kullback-Leibler divergence.

As in the authors' code, github.com/yorkerlin/KL-Methods (commit a02e622, optim/kl_opt.py with
`using_klsoap=True`) for matrices. That code computes in bf16, this in the dtype of the weights.
"""

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, Positive
from trainer.optimizers.routing import Decay, Group, keeps
from trainer.optimizers.together import Batched, beside_adamw

FIRST_VALUE = 0.1
"""All eigenvalues of both factors at the start (`init_factor` of the code)."""
CLAMP = 10, 4000
"""The root of an inverse eigenvalue is at most n, the width of its factor, but within these."""


def fitted(
    average: Tensor,  # [matrices, n, n], changed in place
    values: Tensor,  # [matrices, n], changed in place
    whitened: Tensor,  # [matrices, n, others]
    rotated: Tensor,  # [matrices, n, others]
    share: float,
) -> None:
    """Moves a factor of the second moment, and its eigenvalues in the basis, towards a gradient.

    The columns of `whitened` are the gradient's, divided by the root of the other factor; those of
    `rotated` are the same in the factor's own basis.
    """
    others = whitened.shape[-1]
    average.lerp_(whitened @ whitened.mT / others, share)
    values.lerp_(rotated.square().mean(-1), share)
    least, most = CLAMP
    values.clamp_min_(max(least, min(values.shape[-1], most)) ** -2)


class KlSoap(Batched):
    """Adam, without bias correction, of UᵀgV, turned back; U and V are the bases of two factors.

    L ← β L + (1 − β) g R⁻¹ gᵀ / columns and R ← β R + (1 − β) gᵀ L⁻¹ g / rows: each factor is of
    gradients whitened by the other, of which R⁻¹ = V diag(1 / r) Vᵀ has averaged eigenvalues r.
    Every few updates, one power iteration renews U and V; the second moment keeps its entries.
    """

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        """The factors of the first gradient, and their eigenvectors by falling eigenvalue."""
        assert matrix.grad is not None
        rows, columns = matrix.shape
        share = 1 - self.defaults["variance_decay"]
        left = matrix.grad @ matrix.grad.T * (share / columns)
        right = matrix.grad.T @ matrix.grad * (share / rows)
        return {
            "step": torch.zeros((), dtype=torch.int64),  # on the CPU, where it is read
            "momentum": torch.zeros_like(matrix),  # in the bases
            "variance": torch.zeros_like(matrix),
            "left": left,
            "right": right,
            "rows": torch.linalg.eigh(left).eigenvectors.flip(-1),
            "columns": torch.linalg.eigh(right).eigenvectors.flip(-1),
            "row_values": matrix.new_full((rows,), FIRST_VALUE),
            "column_values": matrix.new_full((columns,), FIRST_VALUE),
        }

    @override
    def _step(self, group: Group, weights: list[Tensor]) -> None:
        """The first call starts the state and changes no weight."""
        fresh = [weight for weight in weights if not self.state[weight]]
        for weight in fresh:
            self.state[weight].update(self.start(weight))
        if not fresh:  # matrices of a shape are always stepped together
            super()._step(group, weights)

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        rows, columns, decay = state["rows"], state["columns"], group["variance_decay"]
        rotated = rows.mT @ gradient @ columns
        momentum = state["momentum"].lerp_(rotated, 1 - group["decay"])
        variance = state["variance"].mul_(decay).addcmul_(rotated, rotated, value=1 - decay)
        update = rows @ (momentum / (variance.sqrt() + group["eps"])) @ columns.mT
        self._fit(gradient, rotated, state, 1 - decay)
        state["step"] += 1
        if int(state["step"][0]) % group["precondition_every"] == 0:
            self._renew(state)
        return update * (1 - group["lr"] * group["weight_decay"])  # it decays what it has stepped

    def _fit(
        self, gradient: Tensor, rotated: Tensor, state: dict[str, Tensor], share: float
    ) -> None:
        by_rows = state["row_values"].rsqrt().unsqueeze(-1)
        by_columns = state["column_values"].rsqrt().unsqueeze(-2)
        left = gradient @ state["columns"] * by_columns
        right = (state["rows"].mT @ gradient * by_rows).mT
        fitted(state["left"], state["row_values"], left, rotated * by_columns, share)
        fitted(state["right"], state["column_values"], right, (rotated * by_rows).mT, share)

    def _renew(self, state: dict[str, Tensor]) -> None:
        """Takes both bases one power iteration further, and the momentum with them."""
        rows = torch.linalg.qr(state["left"] @ state["rows"]).Q
        columns = torch.linalg.qr(state["right"] @ state["columns"]).Q
        momentum = state["rows"] @ state["momentum"] @ state["columns"].mT
        state["momentum"].copy_(rows.mT @ momentum @ columns)
        state["rows"].copy_(rows)
        state["columns"].copy_(columns)


@keeps(2, squares=2, in_step=11)
@beside_adamw
def kl_soap(
    groups: list[Group],
    *,
    lr: Positive,
    momentum: Decay,
    precondition_every: Count,
    variance_decay: Decay,
    eps: Positive,
) -> Optimizer:
    """KL-SOAP for hidden matrices, AdamW for the rest."""
    return KlSoap(
        groups,
        lr=lr,
        decay=momentum,
        variance_decay=variance_decay,
        precondition_every=precondition_every,
        eps=eps,
    )
