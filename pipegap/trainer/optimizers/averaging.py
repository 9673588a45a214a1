"""Optimizers that take gradients at some weights and are evaluated at others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol, runtime_checkable

import torch
from annotated_types import Interval
from torch import Tensor
from torch.optim import Optimizer

from pipegap.trainer.base.flat import cloned, local_parts
from pipegap.trainer.base.ranges import NonNegative, Positive
from pipegap.trainer.optimizers.routing import Decay, Parameters, averaging, decaying, entrywise


@runtime_checkable
class HasModes(Protocol):
    """An optimizer that moves its weights itself: to those to evaluate, and back to train on.

    So do Schedule-Free, whose weights are y and whose average is x, and others that average.
    """

    def eval(self) -> None:
        """Moves the weights to those to evaluate, if they are those to train on."""

    def train(self) -> None:
        """Moves the weights back, which may round them."""


@runtime_checkable
class Averages(Protocol):
    """A wrapper of an optimizer, which may have modes."""

    def evaluation_weights(self) -> Mapping[Tensor, Tensor]:
        """Weight → tensor to evaluate and export in its place; changes nothing."""


def averages(optimizer: Optimizer) -> bool:
    """Whether the optimizer may be evaluated at other weights than those that it steps."""
    has_modes = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
    return has_modes or hasattr(optimizer, "evaluation_weights")  # isinstance would take 15 µs


@torch.no_grad()
def evaluated(optimizer: Optimizer, weights: Sequence[Tensor]) -> Sequence[Tensor]:
    """The tensors to evaluate in place of `weights`, all that the optimizer has, in train mode.

    For most optimizers they are the weights themselves, else copies. No bit of the training
    changes: an optimizer's own way back from what is evaluated rounds.
    """
    if isinstance(optimizer, Averages):
        evaluation_weights = optimizer.evaluation_weights()
        return [evaluation_weights[weight] for weight in weights]
    if not isinstance(optimizer, HasModes):
        return list(weights)
    trained = cloned(weights)
    optimizer.eval()
    moved = cloned(weights)
    optimizer.train()
    torch._foreach_copy_(local_parts(weights), local_parts(trained))
    return moved


@averaging
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
    return optimizer
