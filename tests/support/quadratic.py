"""One weight on a quadratic, trained by the project's own stage and emulated executor."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pipegap.trainer.executors.emulated import Emulated
from pipegap.trainer.executors.executor import Clip
from pipegap.trainer.schedules.recipes import constant_delay
from pipegap.trainer.stages.stage import Stage
from tests.support.delayed import PHASES
from tests.support.every_correction import ONE_STAGE, maker


def trajectory(
    optimizer: Callable[..., torch.optim.Optimizer],
    correction: Mapping[str, Any],
    delay: int,
    num_updates: int,
    noise: Mapping[int, float] | None = None,
) -> list[float]:
    """W(0) = 1, …, W(T) for the loss W² / 2 + n_t W, in fp64; `noise` is n_t, 0 where missing."""
    start = torch.ones(1, 1, dtype=torch.float64)
    batch = partial(_batch, noise or {})
    weights = trained(start, optimizer, correction, delay, num_updates, batch, _loss)
    return [weight.item() for weight in weights]


def trained(
    start: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    correction: Mapping[str, Any],
    delay: int,
    num_updates: int,
    batch: Callable[[int], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """W(0) = `start`, …, W(T), [1, d] each, of a layer without bias under a constant delay.

    All columns of a batch but the last are inputs, all but the first are handed to the loss.
    """
    module = nn.Linear(start.shape[1], 1, bias=False, dtype=start.dtype)
    module.weight = nn.Parameter(start.clone())
    schedule = constant_delay(num_updates, delay=delay, **ONE_STAGE, **PHASES)
    stage = Stage(
        module,
        {"weight": "matrix"},
        optimizer,
        partial(maker(correction), num_updates),
        lambda t: 1.0,
        lag=delay,
        tied=frozenset(),
        tied_lag=delay,
        dtype=start.dtype,
    )
    executor = Emulated([stage], schedule, batch, loss, Clip(float("inf")))
    [master] = stage.versions.master
    weights = [master.clone()]
    executor.run(0, num_updates, lambda _: weights.append(master.clone()))
    return weights


def _batch(noise: Mapping[int, float], t: int) -> Tensor:
    """The model's input, which makes its output the weight, and n_t."""
    return torch.tensor([[1.0, noise.get(t, 0.0)]], dtype=torch.float64)


def _loss(output: Tensor, noise: Tensor) -> Tensor:
    return (output.square() / 2 + noise * output).sum()


def responses(
    optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: Sequence[Tensor]
) -> list[Tensor]:
    """W(t) − W(t+1) for each of these gradients, which do not depend on W."""
    updates = []
    for gradient in gradients:
        before = weight.detach().clone()
        weight.grad = gradient.clone()
        optimizer.step()
        updates.append(before - weight.detach())
    return updates
