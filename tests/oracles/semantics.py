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
    clips_by_stage: bool = False,
    tied: Sequence[tuple[int, int]] = (),
) -> tuple[list[Weights], list[float]]:
    """All versions of the weights, W(0) … W(T), and the loss of every batch.

    The model is `stages` one after the other; batch t reads version `version(t, lag)` of a stage.
    `tied` has the numbers of two weights that begin with equal values and share one gradient; both
    take the larger lag. A clip of the whole model counts them once; a clip by stage scales each
    stage's other weights by their norm, and a tied weight by its own.
    """
    model, optimizers = nn.Sequential(*stages), [optimizer_of(stage) for stage in stages]
    weights = list(model.parameters())
    of_stages = [
        [History(lag, [w.detach().clone()], x=[w.detach().clone()]) for w in stage.parameters()]
        for stage, lag in zip(stages, lags, strict=True)
    ]
    histories = [h for of_stage in of_stages for h in of_stage]
    _share_lags(histories, tied)
    peak, losses = max(map(lr, range(len(batches)))), list[float]()
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
        for first, copy in tied:
            histories[first].g[t] = histories[copy].g[t] = (
                histories[first].g[t] + histories[copy].g[t]
            )
        for h, w in zip(histories, weights, strict=True):
            w.grad = correction.gradient(h, t).clone()
        for of_clip in _clipped(stages, weights, tied, by_stage=clips_by_stage):
            clip_grad_norm_(of_clip, clip_norm)
        for first, copy in tied:
            weights[copy].grad = weights[first].grad.clone()
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
            norm = _norm(h.stepped[t]) if w in on_spheres else None
            h.x.append(_scaled(correction.next(h, t), norm))
            h.rate.append(lr(t) / peak)
            ahead = correction.look_ahead(h, t)
            h.W.append(ahead if ahead is h.x[-1] else _scaled(ahead, norm))
    return [list(version) for version in zip(*(h.W for h in histories), strict=True)], losses


def _share_lags(histories: Sequence[History], tied: Sequence[tuple[int, int]]) -> None:
    for first, copy in tied:
        lag = max(histories[first].lag, histories[copy].lag)
        histories[first].lag = histories[copy].lag = lag


def _clipped(
    stages: Sequence[nn.Module],
    weights: Sequence[nn.Parameter],
    tied: Sequence[tuple[int, int]],
    *,
    by_stage: bool,
) -> list[list[nn.Parameter]]:
    """The weights whose gradients are scaled by one norm each; of two copies the first alone."""
    if not by_stage:
        copies = [copy for _, copy in tied]
        return [[w for i, w in enumerate(weights) if i not in copies]]
    shared = {weights[i] for pair in tied for i in pair}
    of_stages = [[w for w in stage.parameters() if w not in shared] for stage in stages]
    return [*of_stages, *([weights[first]] for first, _ in tied)]


def _scaled(matrix: Tensor, norm: Tensor | None) -> Tensor:
    return matrix if norm is None else matrix * (norm / _norm(matrix))


def _norm(matrix: Tensor) -> Tensor:
    return matrix.norm(dim=(-2, -1), keepdim=True)


def _load(weights: Sequence[nn.Parameter], values: Weights) -> None:
    with torch.no_grad():
        for w, value in zip(weights, values, strict=True):
            w.copy_(value)
