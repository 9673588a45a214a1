"""Cautious decay (arXiv 2510.12402): an entry decays unless its update would enlarge it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.optimizers.routing import Group
from trainer.optimizers.together import StepsItsOwnWay


def decay_cautiously(weights: Sequence[Tensor], updates: Sequence[Tensor], share: float) -> None:
    """W ← W − share · W in place, where W · update ≥ 0; the update is what will be subtracted."""
    for weight, update in zip(weights, updates, strict=True):
        weight.sub_(weight * (weight * update >= 0), alpha=share)


class CautiousDecay(StepsItsOwnWay):
    """Moves weights by the updates of an optimizer, and makes its decay in its place."""

    def __init__(self, optimizer: Optimizer) -> None:
        super().__init__([optimizer])
        for group in self.param_groups:
            group["cautious_decay"], group["weight_decay"] = group["weight_decay"], 0.0

    @override
    def move(
        self, group: Group, weights: list[Tensor], before: list[Tensor], update: list[Tensor]
    ) -> None:
        decay_cautiously(before, update, group["lr"] * group["cautious_decay"])
        torch._foreach_sub_(before, update)
        torch._foreach_copy_(weights, before)
