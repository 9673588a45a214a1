"""The semantics written naively from its equations: every version is kept, nothing is clever."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from tests.oracles.corrections import History, Plain

Weights = list[Tensor]


def train(
    stages: Sequence[nn.Module],
    lags: Sequence[int],
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    lr: Callable[[int], float],
    batches: Sequence[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    version: Callable[[int, int], int],
    correction: Plain,
    *,
    clip_norm: float,
    microbatches: int,
) -> tuple[list[Weights], list[float]]:
    """All versions of the weights, W(0) … W(T), and the loss of every batch.

    The model is `stages` one after the other; batch t reads version `version(t, lag)` of a stage.
    """
    model, optimizers = nn.Sequential(*stages), [optimizer_of(stage) for stage in stages]
    weights = list(model.parameters())
    of_stages = [
        [History(lag, [w.detach().clone()]) for w in stage.parameters()]
        for stage, lag in zip(stages, lags, strict=True)
    ]
    histories = [h for of_stage in of_stages for h in of_stage]
    losses: list[float] = []
    for t, (x, y) in enumerate(batches):
        for h in histories:
            h.delay.append(t - version(t, h.lag))
        _load(weights, [correction.read(h, t) for h in histories])
        model.zero_grad()
        parts = list(zip(x.chunk(microbatches), y.chunk(microbatches), strict=True))
        values = [loss(model(a), b) for a, b in parts]
        for value in values:
            value.backward()
        losses.append(float(sum(value.detach() for value in values)) / microbatches)
        for h, w in zip(histories, weights, strict=True):
            h.g.append(w.grad / microbatches)
            w.grad = correction.gradient(h, t).clone()
        clip_grad_norm_(weights, clip_norm)
        _load(weights, [h.W[t] for h in histories])
        for optimizer, of_stage in zip(optimizers, of_stages, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr(t) * correction.lr_factor(of_stage[0], t)
            optimizer.step()
        on_spheres = {
            w
            for optimizer in optimizers
            for group in optimizer.param_groups
            for w in group["params"]
            if group.get("on_sphere")
        }
        for h, w in zip(histories, weights, strict=True):
            h.stepped.append(w.detach().clone())
            h.u.append(h.W[t] - h.stepped[t])
            h.W.append(correction.next(h, t))
            if w in on_spheres:
                h.W[-1] = h.W[-1] * (_norm(h.stepped[t]) / _norm(h.W[-1]))
    return [list(version) for version in zip(*(h.W for h in histories), strict=True)], losses


def _norm(matrix: Tensor) -> Tensor:
    return matrix.norm(dim=(-2, -1), keepdim=True)


def _load(weights: Sequence[nn.Parameter], values: Weights) -> None:
    with torch.no_grad():
        for w, value in zip(weights, values, strict=True):
            w.copy_(value)
