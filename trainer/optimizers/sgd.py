"""Descent by momentum alone: SGD, and updates whose entries all have one size."""

import torch
from torch.optim import Optimizer

from trainer.base.ranges import NonNegative, Positive
from trainer.optimizers.routing import Decay, Parameters, decaying, entrywise, keeps


@entrywise
@keeps(1, others=1, in_step=0)
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
@keeps(1, others=1, in_step=0)
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

    return SGDW(decaying(parameters, weight_decay), lr=lr, momentum=momentum, nesterov=nesterov)


@entrywise
@keeps(1, others=1)
def lion(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    interpolation: Decay,
    weight_decay: NonNegative,
) -> Optimizer:
    """Lion (arXiv 2302.06675), pytorch_optimizer's.

    `momentum` is the decay of the momentum m, the paper's β2. The update is the sign of
    interpolation · m + (1 − interpolation) · gradient, where `interpolation` is the paper's β1.
    """
    from pytorch_optimizer import Lion

    return Lion(decaying(parameters, weight_decay), lr=lr, betas=(interpolation, momentum))


@entrywise
@keeps(1, others=1)
def signum(
    parameters: Parameters, *, lr: Positive, momentum: Decay, weight_decay: NonNegative
) -> Optimizer:
    """Signum (arXiv 1802.04434) with decoupled decay, pytorch_optimizer's."""
    from pytorch_optimizer import SignSGD

    return SignSGD(decaying(parameters, weight_decay), lr=lr, momentum=momentum)
