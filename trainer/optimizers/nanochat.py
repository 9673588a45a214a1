"""nanochat's optimizer (karpathy/nanochat, nanochat/optim.py at 92d63d4)."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.base.ranges import Count, Positive
from trainer.optimizers.orthogonal import Orthogonal, Orthogonalisation
from trainer.optimizers.routing import Decay, Group, keeps
from trainer.optimizers.together import beside_adamw, decay_cautiously


class Nanochat(Orthogonal):
    """Gives tall matrices a rate, of update and decay, that is √(rows / columns) as large."""

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
