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
    lag: Callable[[int], int] = lambda t: 1,
    horizon: float = 0.0,
    compensate: Callable[[int, list[Weights], list[Weights]], Weights] = lambda t, raw, _: raw[t],
) -> tuple[list[Weights], list[float]]:
    """All versions of the weights, W(0) … W(T), and the loss of every batch.

    `compensate(t, raw, history)` makes the gradient of batch t of all raw ones and all weights.
    """
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
    history = [[p.detach().clone() for p in parameters]]
    losses: list[float] = []
    updates: list[Weights] = []
    raw: list[Weights] = []
    for t, (x, y) in enumerate(batches):
        v = version(t)
        read = history[v]
        if 0 < v < t:
            read = [w - horizon * u for w, u in zip(read, updates[v - 1], strict=True)]
        _load(parameters, read)
        optimizer.zero_grad()
        parts = list(zip(x.chunk(microbatches), y.chunk(microbatches), strict=True))
        values = [loss(model(a), b) for a, b in parts]
        for value in values:
            value.backward()
        for p in parameters:
            p.grad /= microbatches
        losses.append(float(sum(value.detach() for value in values)) / microbatches)
        raw.append([p.grad.clone() for p in parameters])
        for p, gradient in zip(parameters, compensate(t, raw, history), strict=True):
            p.grad = gradient.clone()
        clip_grad_norm_(parameters, clip_norm)
        _load(parameters, history[t])
        for group in optimizer.param_groups:
            group["lr"] = lr(t)
        optimizer.step()
        update = [w - p.detach() for w, p in zip(history[t], parameters, strict=True)]
        new = [p.detach().clone() for p in parameters]
        if t > v:
            earlier = updates[t - lag(t)]
            new = [  # an optimizer's first call may do nothing, which is no update to go by
                w - coefficient * (u - e) if e.any() else w
                for w, u, e in zip(new, update, earlier, strict=True)
            ]
        updates.append(update)
        history.append(new)
    return history, losses


def _load(parameters: list[nn.Parameter], values: Weights) -> None:
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)
