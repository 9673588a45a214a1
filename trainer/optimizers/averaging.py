"""Optimizers that take gradients at some weights and are evaluated at others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol, runtime_checkable

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim import Optimizer

from trainer.base.ranges import NonNegative, Positive
from trainer.optimizers.routing import Decay, Parameters, decaying, entrywise
from trainer.optimizers.together import Together


@runtime_checkable
class Averages(Protocol):
    """An optimizer that keeps an average of its weights, at which it is evaluated."""

    def evaluation_weights(self) -> Mapping[Tensor, Tensor]:
        """Weight → tensor to evaluate and export in its place; changes nothing."""


def evaluated(optimizer: Optimizer, weights: Sequence[Tensor]) -> list[Tensor]:
    """The tensors to evaluate in place of `weights`; for most optimizers the weights themselves."""
    if not isinstance(optimizer, Averages):
        return list(weights)
    averages = optimizer.evaluation_weights()
    return [averages[weight] for weight in weights]


class ScheduleFree(Together):
    """Wraps schedulefree's optimizers, which stay in train mode: the weights are their y.

    The library's own eval() and train() move the weights to x and back, which is not exact.
    """

    @torch.no_grad()
    def evaluation_weights(self) -> dict[Tensor, Tensor]:
        """x = y + (1 − 1/momentum) (z − y); a weight without a z was never stepped."""
        return {
            y: torch.lerp(y, self.state[y].get("z", y), 1 - 1 / group["betas"][0])
            for group in self.param_groups
            for y in group["params"]
        }


@entrywise
def schedule_free_adamw(
    parameters: Parameters,
    *,
    lr: Positive,
    momentum: Annotated[float, Interval(gt=0, lt=1)],
    variance_decay: Decay,
    eps: Positive,
    weight_decay: NonNegative,
) -> Optimizer:
    """Schedule-Free AdamW (arXiv 2405.15682), the authors' library; its own warm-up is off.

    Gradients are taken at y = momentum · x + (1 − momentum) · z; z makes Adam's steps, and x, the
    average of z, is what is evaluated.
    """
    from schedulefree import AdamWScheduleFree

    optimizer = AdamWScheduleFree(
        decaying(parameters, weight_decay), lr=lr, betas=(momentum, variance_decay), eps=eps
    )
    optimizer.train()
    return ScheduleFree([optimizer])
