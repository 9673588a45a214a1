"""One update of the wrapped optimizer, from a gradient that is late."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from trainer.delayed.keeper import Gradient
from trainer.optimizers.averaging import averages, evaluated
from trainer.stages.in_parts import CorrectionInParts
from trainer.stages.update import corrected_update, stepping


def make_update(
    optimizer: Optimizer,
    correction: CorrectionInParts,
    weights: Sequence[nn.Parameter],
    gradient: Gradient,
    clip_norm: float | None,
) -> Sequence[Tensor]:
    """Turns `weights` from W(t) into W(t + 1); returns what late reads of them see.

    The correction and the clip change the gradient in place.
    """
    batch, tensors, delay = gradient
    delays = [delay] * len(tensors)
    correction.gradient_of_some(tensors, weights, delays)
    clip(tensors, clip_norm)
    with _scaled(optimizer, correction.lr_factor(batch, delay)):
        step = stepping(optimizer, weights, tensors)
        return corrected_update(step, correction, weights, delays)


def has_average(optimizer: Optimizer) -> bool:
    """Whether the optimizer has stepped, elsewhere or here, and averages."""
    return averages(optimizer) and any(optimizer.state.values())


def to_evaluate(
    optimizer: Optimizer, weights: Sequence[nn.Parameter], num_made: int
) -> Sequence[Tensor]:
    """The tensors to evaluate in place of `weights`, the newest ones, of which the optimizer made
    `num_made` updates here."""
    if not num_made and not has_average(optimizer):
        return weights  # an average of nothing: some optimizers raise there
    return evaluated(optimizer, weights)


@contextmanager
def _scaled(optimizer: Optimizer, factor: float) -> Iterator[None]:
    """The groups have `factor` times their learning rate for one update.

    Raises RuntimeError if the optimizer sets the rate itself: of what, nobody could say.
    """
    if factor == 1.0:
        yield
        return
    own = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * factor
    scaled = [group["lr"] for group in optimizer.param_groups]
    try:
        yield
        if any(g["lr"] is not lr for g, lr in zip(optimizer.param_groups, scaled, strict=True)):
            raise RuntimeError("the optimizer sets its own learning rate, as the correction does")
    finally:
        for group, lr in zip(optimizer.param_groups, own, strict=True):
            group["lr"] = lr


@torch.no_grad()
def clip(gradients: Sequence[Tensor | None], norm: float | None) -> None:
    """Clips gradients in place by the norm of them all, unless the `norm` is None."""
    if norm is None:
        return
    holders = []
    for gradient in gradients:
        if gradient is not None:
            holder = nn.Parameter(gradient, requires_grad=False)
            holder.grad = gradient
            holders.append(holder)
    clip_grad_norm_(holders, norm)
