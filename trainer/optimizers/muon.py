"""Orthogonalised momentum: Muon and NorMuon, with the library's own AdamW for other weights."""

from __future__ import annotations

from typing import Literal

from torch.optim import Optimizer

from trainer.base.ranges import Count, NonNegative, Positive
from trainer.optimizers.routing import Decay, Group, Parameters, grouped, holds
from trainer.optimizers.together import auxiliary


@holds(1)
def muon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    scaling: Literal["original", "match_rms_adamw"],
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Muon for hidden matrices, AdamW for the rest (Jordan 2024; arXiv 2502.16982).

    pytorch_optimizer's, which orthogonalises all matrices of a shape in one batch, in bf16.
    `match_rms_adamw` scales by 0.2 sqrt(max(rows, columns)), so that one lr fits both halves.
    """
    from pytorch_optimizer import Muon  # imported late: it costs a second

    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    optimizer: Optimizer = Muon(
        _halves(parameters, adamw, weight_decay),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        use_adjusted_lr=scaling == "match_rms_adamw",
    )
    return optimizer


def normuon(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    newton_schulz_steps: Count,
    scaling: Literal["preserve_norm", "match_rms"],
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """NorMuon (arXiv 2510.05491): Muon's update with rows of equal size; AdamW for the rest.

    pytorch_optimizer's, which updates all matrices of one shape in one batch. `match_rms` scales an
    update to a root mean square of 0.2, as the paper does. `preserve_norm` restores its norm and
    multiplies it by sqrt(max(1, rows / columns)), as the authors' code does.
    """
    from pytorch_optimizer import NorMuon

    adamw = auxiliary(lr, auxiliary_lr, auxiliary_momentum, variance_decay, eps)
    optimizer: Optimizer = NorMuon(
        _halves(parameters, adamw, weight_decay),
        lr=lr,
        momentum=momentum,
        beta2=variance_decay,
        nesterov=nesterov,
        ns_steps=newton_schulz_steps,
        update_scale=scaling,
        eps=eps,
    )
    return optimizer


def _halves(parameters: Parameters, adamw: Group, weight_decay: float) -> list[Group]:
    """Parameter groups: the hidden matrices for Muon, the rest for AdamW, each marked so."""
    other = {"use_muon": False, **adamw}
    return grouped(
        parameters,
        matrix={"use_muon": True, "weight_decay": weight_decay},
        embedding={**other, "weight_decay": weight_decay},
        vector={**other, "weight_decay": 0.0},
    )
