"""Adam, descent by momentum and their descendants: each entry has a step of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from pipegap.trainer.base.ranges import Count, NonNegative, Positive
from pipegap.trainer.optimizers.routing import (
    Chained,
    Decay,
    Group,
    Parameters,
    decaying,
    entrywise,
    grouped,
    keeps,
)


@entrywise
@keeps(in_step=0)
def adamw(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
    fused: bool,
) -> Optimizer:
    """AdamW (arXiv 1711.05101), torch's."""
    return torch.optim.AdamW(
        decaying(parameters, weight_decay),
        lr=lr,
        betas=(momentum, variance_decay),
        eps=eps,
        fused=fused,
        foreach=not fused,  # all weights of a group in each call, on a CPU too
    )


@entrywise
def nadamw(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    momentum_decay: NonNegative,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """NAdam (Dozat 2016) with decoupled decay, torch's.

    The first moment's decay at update t, from 1, is momentum · (1 − 0.96^(t · momentum_decay) / 2).
    """
    return torch.optim.NAdam(
        decaying(parameters, weight_decay),
        lr=lr,
        betas=(momentum, variance_decay),
        eps=eps,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=True,
    )


@entrywise
@keeps(4, num_of_others=4)
def adan(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    difference_decay: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Adan (arXiv 2208.06677), pytorch_optimizer's. The paper's β are one minus ours.

    Decay is the paper's: W ← W / (1 + lr · weight_decay), after the step.
    """
    from pytorch_optimizer import Adan

    return Adan(
        decaying(parameters, weight_decay),
        lr=lr,
        betas=(momentum, difference_decay, variance_decay),
        eps=eps,
        weight_decouple=False,  # the library's name for the decay above, which is decoupled too
    )


@entrywise
@keeps(in_step=2)
def adopt(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """ADOPT (arXiv 2411.02853), pytorch_optimizer's: normalises by the *last* second moment.

    The normalised gradient of update t (from 0) is clipped to t^(1/4).
    """
    from pytorch_optimizer import ADOPT

    optimizer = ADOPT(
        decaying(parameters, weight_decay),
        lr=lr,
        betas=(momentum, variance_decay),
        eps=eps,
        weight_decouple=True,
        clip_lambda=lambda step: (step - 1) ** 0.25,  # the library counts from 1
    )
    return Chained([optimizer], within=_first_call_only_looks)


@contextmanager
def _first_call_only_looks(groups: Sequence[Group]) -> Iterator[None]:
    """Leaves the weights unchanged at the first call, as in the paper; the library decays them."""
    decays = [group["weight_decay"] for group in groups]
    for group in groups:
        group["weight_decay"] *= group.get("step", 0) > 0  # the library sets `step` as it steps
    yield
    for group, decay in zip(groups, decays, strict=True):
        group["weight_decay"] = decay


@entrywise
@keeps(3, num_of_others=3, in_step=2)
def ademamix(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    slow_momentum: Decay,
    slow_share: NonNegative,
    slow_warmup: Count,
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """AdEMAMix (arXiv 2409.03137), pytorch_optimizer's: a fast and a slow first moment.

    Over `slow_warmup` updates the slow one's decay grows from `momentum` and its share from 0.
    """
    from pytorch_optimizer import AdEMAMix

    return AdEMAMix(
        decaying(parameters, weight_decay),
        lr=lr,
        betas=(momentum, variance_decay, slow_momentum),
        alpha=slow_share,
        t_alpha_beta3=slow_warmup,
        eps=eps,
        weight_decouple=True,
    )


@keeps(3, num_of_others=3, in_step=3)
def mars(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Decay,
    variance_decay: Decay,
    correction: NonNegative,
    auxiliary_lr: Positive | None,
    auxiliary_momentum: Decay,
    auxiliary_variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """MARS-AdamW (arXiv 2411.10438), the approximate one, pytorch_optimizer's; AdamW for vectors.

    It needs no second gradient: it compares this batch's with the one before.
    """
    from pytorch_optimizer import MARS

    return MARS(
        # The library itself takes weights in one dimension for vectors, the options `…_1d`.
        grouped(parameters, matrix={}, embedding={}, vector={"weight_decay": 0.0}),
        lr=lr,
        betas=(momentum, variance_decay),
        gamma=correction,
        lr_1d=lr if auxiliary_lr is None else auxiliary_lr,
        betas_1d=(auxiliary_momentum, auxiliary_variance_decay),
        weight_decay=weight_decay,
        weight_decay_1d=0.0,
        eps=eps,
    )


@entrywise
@keeps(1, num_of_others=1, in_step=0)
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
        foreach=not fused,  # all weights of a group in each call, on a CPU too
    )


@entrywise
@keeps(1, num_of_others=1, in_step=0)
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
@keeps(1, num_of_others=1)
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
@keeps(1, num_of_others=1)
def signum(
    parameters: Parameters, *, lr: Positive, momentum: Decay, weight_decay: NonNegative
) -> Optimizer:
    """Signum (arXiv 1802.04434) with decoupled decay, pytorch_optimizer's."""
    from pytorch_optimizer import SignSGD

    return SignSGD(decaying(parameters, weight_decay), lr=lr, momentum=momentum)
