"""Stochastic gradient descent with momentum."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from trainer.base.ranges import NonNegative, Positive
from trainer.optimizers.routing import Decay, Parameters, decaying, entrywise


@entrywise
def sgd(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    weight_decay: NonNegative,
    fused: bool,
) -> Optimizer:
    """SGD with momentum, torch's; `weight_decay` is added to the gradient (L2), as torch does."""
    return torch.optim.SGD(
        decaying(parameters, weight_decay),
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        fused=fused,
    )


@entrywise
def sgdw(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    nesterov: bool,
    weight_decay: NonNegative,
) -> Optimizer:
    """SGD with momentum and decoupled decay (arXiv 1711.05101), pytorch_optimizer's."""
    from pytorch_optimizer import SGDW

    optimizer: Optimizer = SGDW(
        decaying(parameters, weight_decay), lr=lr, momentum=momentum, nesterov=nesterov
    )
    return optimizer
