"""Adam and its descendants: every weight by its own moments."""

import torch
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, NonNegative, Positive
from trainer.optimizers.routing import Decay, Parameters, decaying, entrywise, grouped, keeps
from trainer.optimizers.together import Together


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
@keeps(4, others=4)
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
    return _FirstCallOnlyLooks([optimizer])


class _FirstCallOnlyLooks(Together):
    """Leaves the weights unchanged at the first call, as in the paper; the library decays them."""

    @override
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] *= group.get("step", 0) > 0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


@entrywise
@keeps(3, others=3, in_step=2)
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


@keeps(3, others=3, in_step=3)
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
