"""One update of the wrapped optimizer, from a gradient that is late."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import islice

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from trainer.delayed.keeper import Gradient, Options
from trainer.optimizers.averaging import averages, evaluated
from trainer.stages.in_parts import CorrectionInParts
from trainer.stages.probe import NoProbe
from trainer.stages.update import corrected_update

SCHEDULED = ("lr", "betas", "momentum", "weight_decay")
"""Options of a group that schedulers set. A gradient that waits keeps those of its own batch."""


def options_of(optimizer: Optimizer) -> Options:
    """A copy of what schedulers set, of each group."""
    return [
        {key: deepcopy(group[key]) for key in SCHEDULED if key in group}
        for group in optimizer.param_groups
    ]


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
    batch, tensors, options, delay = gradient
    delays = [delay] * len(tensors)
    correction.gradient_of_some(tensors, weights, delays)
    if clip_norm is not None:
        _clip([tensor for tensor in tensors if tensor is not None], clip_norm)
    factor = correction.lr_factor(batch, delay)
    with stepping(optimizer, weights), _using(optimizer, options, factor):
        return corrected_update(optimizer, correction, weights, tensors, delays, NoProbe())


def has_average(optimizer: Optimizer) -> bool:
    """Whether the optimizer has stepped, elsewhere or here, and averages."""
    return averages(optimizer) and any(optimizer.state.values())


def to_evaluate(
    optimizer: Optimizer, weights: Sequence[nn.Parameter], num_made: int
) -> Sequence[Tensor]:
    """The tensors to evaluate in place of `weights`, of which the optimizer made `num_made` updates
    here."""
    if not num_made and not has_average(optimizer):
        return weights  # an average of nothing: some optimizers raise there
    with stepping(optimizer, weights):
        return evaluated(optimizer, weights)


@contextmanager
def stepping(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """The optimizer has these weights while the context lasts, else the loop's."""
    own = [group["params"] for group in optimizer.param_groups]
    following = iter(weights)
    for group, params in zip(optimizer.param_groups, own, strict=True):
        group["params"] = list(islice(following, len(params)))
    try:
        yield
    finally:  # its load_state_dict makes new groups
        for group, params in zip(optimizer.param_groups, own, strict=True):
            group["params"] = params


@contextmanager
def _using(optimizer: Optimizer, options: Options, factor: float) -> Iterator[None]:
    """The groups have these options, and `factor` times the learning rate, for one update."""
    current = options_of(optimizer)
    for group, scheduled in zip(optimizer.param_groups, options, strict=True):
        group.update(scheduled)
        if factor != 1.0:
            group["lr"] = group["lr"] * factor
    try:
        yield
    finally:
        for group, scheduled in zip(optimizer.param_groups, current, strict=True):
            group.update(scheduled)


def _clip(gradients: Sequence[Tensor], norm: float) -> None:
    holders = []
    for gradient in gradients:
        holder = nn.Parameter(gradient, requires_grad=False)
        holder.grad = gradient
        holders.append(holder)
    clip_grad_norm_(holders, norm)
