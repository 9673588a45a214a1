"""The semantics written naively from its equations: every version is kept, nothing is clever."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

Weights = list[Tensor]


def train(
    model: nn.Module,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    lr: Callable[[int], float],
    batches: Sequence[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    version: Callable[[int], int],
    coefficient: float = 0.0,
    clip_norm: float = float("inf"),
    microbatches: int = 1,
) -> tuple[list[Weights], list[float]]:
    """All versions of the weights, W(0) … W(T), and the loss of every batch."""
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
    history = [[p.detach().clone() for p in parameters]]
    losses, previous = [], None
    for t, (x, y) in enumerate(batches):
        _load(parameters, history[version(t)])
        optimizer.zero_grad()
        parts = list(zip(x.chunk(microbatches), y.chunk(microbatches), strict=True))
        values = [loss(model(a), b) for a, b in parts]
        for value in values:
            value.backward()
        for p in parameters:
            p.grad /= microbatches
        losses.append(float(sum(v.detach() for v in values)) / microbatches)
        clip_grad_norm_(parameters, clip_norm)
        _load(parameters, history[t])
        for group in optimizer.param_groups:
            group["lr"] = lr(t)
        optimizer.step()
        update = [w - p.detach() for w, p in zip(history[t], parameters, strict=True)]
        new = [p.detach().clone() for p in parameters]
        if previous is not None and t - version(t) > 0:
            new = [
                w - coefficient * (u - v)
                if v.any()
                else w  # an optimizer's first call may do nothing
                for w, u, v in zip(new, update, previous, strict=True)
            ]
        previous = update
        history.append(new)
    return history, losses


def _load(parameters: list[nn.Parameter], values: Weights) -> None:
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)
