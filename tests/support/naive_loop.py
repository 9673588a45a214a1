"""A delayed loop that keeps every version, and the same loop around a `DelayedOptimizer`.

Gradients are a function of weights and batch, so that a loop is its optimizer, its weights and what
it `does` to both before a step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.delayed import DelayedOptimizer

T = 6
SHAPES = ((4, 3), (3,), (), (0,))
Make = Callable[[list[nn.Parameter]], Optimizer]
Does = Callable[[Any, list[nn.Parameter], int], object]


def weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(s, generator=generator).double()) for s in SHAPES]


def gradients(at: Sequence[Tensor], t: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + t)
    noise = [torch.randn(w.shape, generator=generator) for w in at]
    return [torch.sin(3 * w.detach()) + n.to(w) / 2 for w, n in zip(at, noise, strict=True)]


def nothing(optimizer: Any, weights: list[nn.Parameter], t: int) -> None:
    """What a loop does that only trains."""


def give(weights: Sequence[nn.Parameter], at: Sequence[Tensor], t: int) -> None:
    """The gradients of batch t at these versions; sparse ones of weights that are marked so."""
    for weight, gradient in zip(weights, gradients(at, t), strict=True):
        form = gradient.to_sparse() if hasattr(weight, "is_looked_up") else gradient
        weight.grad = form if weight.requires_grad else None


def _copies(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]


def naive(make: Make, delay: int, coefficient: float, does: Does = nothing) -> list[Tensor]:
    """W(T) by the equations of docs/semantics.md."""
    torch.manual_seed(0)
    live = weights()
    optimizer = make(live)
    versions: list[list[Tensor]] = []
    earlier: list[Tensor] = []
    for t in range(T):
        does(optimizer, live, t)
        first = _copies(live)
        for version in versions:  # weights that come later have always been what they are now
            version.extend(first[len(version) :])
        versions.append(first)
        give(live, versions[max(0, t - delay)], t)
        optimizer.step()
        update = [a - b for a, b in zip(first, _copies(live), strict=True)]
        for weight, now, before in zip(live, update, earlier, strict=False):
            if delay and before.abs().sum():
                weight.data += coefficient * (before - now)
        earlier = update
    return _copies(live)


def delayed(
    make: Make, delay: int, coefficient: float, does: Does = nothing, **options: Any
) -> Any:
    """W(T) of a `DelayedOptimizer`."""
    torch.manual_seed(0)
    own = weights()
    optimizer = DelayedOptimizer(make(own), delay, coefficient, **options)
    for t in range(T):
        optimizer.zero_grad()
        does(optimizer, own, t)
        give(own, own, t)
        optimizer.step()
    optimizer.finish()
    return _copies(own)


def are_equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))
