"""Preconditioners that are Kronecker products of gradient statistics: Shampoo, SOAP."""

from __future__ import annotations

from torch.optim import Optimizer

from trainer.optimizers.routing import Count, Decay, NonNegative, Parameters, Positive
from trainer.optimizers.together import auxiliary, beside_adamw


def shampoo(
    parameters: Parameters,
    *,
    lr: Positive,
    precondition_every: Count,
    matrix_eps: Positive,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Shampoo (arXiv 1802.09568, Algorithm 1) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: L^(−1/4) G R^(−1/4), where L and R sum G Gᵀ and Gᵀ G over all updates.
    """
    from pytorch_optimizer import Shampoo

    return beside_adamw(
        parameters,
        lambda groups: Shampoo(
            groups,
            lr=lr,
            weight_decouple=True,
            preconditioning_compute_steps=precondition_every,
            matrix_eps=matrix_eps,
        ),
        auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps),
        weight_decay,
    )


def soap(
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
    """SOAP (arXiv 2409.11321) for hidden matrices, AdamW for the rest.

    pytorch_optimizer's: Adam in the eigenbasis of Shampoo's averaged L and R.
    """
    from pytorch_optimizer import SOAP

    return beside_adamw(
        parameters,
        lambda groups: SOAP(
            groups,
            lr=lr,
            betas=(momentum, variance_decay),
            eps=eps,
            precondition_frequency=precondition_every,
        ),
        auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps),
        weight_decay,
    )
