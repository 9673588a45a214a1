"""AdaMuon (arXiv 2507.11005): Muon of the momentum's sign, divided by a second moment."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, NonNegative, Positive
from trainer.optimizers.batched import Batched
from trainer.optimizers.routing import Decay, Group, Parameters
from trainer.optimizers.together import auxiliary, beside_adamw


def adamuon_update(
    gradient: Tensor,
    momentum: Tensor,
    variance: Tensor,
    decay: float,
    variance_decay: float,
    nesterov: bool,
    steps: int,
    eps: float,
) -> Tensor:
    """The update, with a root mean square of 0.2; all tensors are [matrices, rows, columns].

    M ← decay M + G and V ← variance_decay V + (1 − variance_decay) O², in place, where O is sign(M)
    (or of G + decay M: Nesterov) orthogonalised by Newton-Schulz. The update is O / (√V + eps),
    scaled.
    """
    from pytorch_optimizer.optimizer.utils import matrix

    momentum.mul_(decay).add_(gradient)
    ahead = gradient.add(momentum, alpha=decay) if nesterov else momentum
    orthogonal = matrix.zero_power_via_newton_schulz_5(ahead.sign(), steps).to(gradient.dtype)
    variance.mul_(variance_decay).addcmul_(orthogonal, orthogonal, value=1 - variance_decay)
    update = orthogonal / (variance.sqrt() + eps)
    rms = update.square().mean((-2, -1), keepdim=True).sqrt()
    return update * (0.2 / (rms + eps))


class AdaMuon(Batched):
    """Applies `adamuon_update` to hidden matrices."""

    @override
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(matrix), "variance": torch.zeros_like(matrix)}

    @override
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        keys = ("decay", "variance_decay", "nesterov", "steps", "eps")
        options = {key: group[key] for key in keys}
        return adamuon_update(gradient, state["momentum"], state["variance"], **options)


def adamuon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """AdaMuon for hidden matrices, AdamW for the rest."""
    return beside_adamw(
        parameters,
        lambda groups: AdaMuon(
            groups,
            lr=lr,
            decay=momentum,
            variance_decay=variance_decay,
            nesterov=nesterov,
            steps=newton_schulz_steps,
            eps=eps,
        ),
        auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps),
        weight_decay,
    )
