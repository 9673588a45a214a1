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
    """An optimizer that itself moves its weights: to the values to evaluate, and back.

    Schedule-Free does, which trains at y and evaluates its average x, and so do others that
    average.
    """

    def eval(self) -> None:
        """Moves the weights to the values to evaluate, unless they have these."""

    def train(self) -> None:
        """Moves the weights back to the values to train on, which may round them."""


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
    """The tensors to evaluate in place of `weights`: all weights of the optimizer, in train mode.

    For most optimizers they are the weights themselves, else copies. No bit of the training
    changes.
    """
    if isinstance(optimizer, Averages):
        evaluation_weights = optimizer.evaluation_weights()
        return [evaluation_weights[weight] for weight in weights]
    if not isinstance(optimizer, HasModes):
        return list(weights)
    training_weights = cloned(weights)
    optimizer.eval()
    evaluation_copies = cloned(weights)
    optimizer.train()
    # `train` computes the weights back from the average, which rounds: the copies are exact.
    torch._foreach_copy_(local_parts(weights), local_parts(training_weights))
    return evaluation_copies


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
    optimizer.train()  # a new one is in evaluation mode, where a step raises
    return optimizer
