"""Optimizers of torch and of trials for a stage's module, by name."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from pipegap.trainer.optimizers.chained import Chained
from pipegap.trainer.optimizers.routing import kinds
from tests.support import every_optimizer


def sgd(stage: nn.Module) -> Optimizer:
    return torch.optim.SGD(stage.parameters(), lr=0.3, momentum=0.9)


def adamw(stage: nn.Module) -> Optimizer:
    return torch.optim.AdamW(stage.parameters(), lr=0.02)


def torch_muon(stage: nn.Module) -> Optimizer:
    matrices = [w for w in stage.parameters() if w.ndim == 2]
    rest = [w for w in stage.parameters() if w.ndim != 2]
    parts: list[Optimizer] = [torch.optim.Muon(matrices, lr=0.02)]
    return Chained([*parts, torch.optim.AdamW(rest, lr=0.02)] if rest else parts)


def of_torch(name: str, stage: nn.Module) -> Optimizer:
    optimizer: Optimizer = getattr(torch.optim, name)(stage.parameters(), lr=0.01)
    return optimizer


def ours(name: str, stage: nn.Module) -> Optimizer:
    kind = kinds(stage)
    weights = [(kind[n], w) for n, w in stage.named_parameters()]
    optimizer: Optimizer = every_optimizer.maker(name, lr=0.02)(weights)
    return optimizer


OF_TORCH = sorted(
    name
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, Optimizer) and made is not Optimizer
    # LBFGS needs a closure, SparseAdam sparse gradients, and Muon is beside AdamW in `torch_muon`.
    if name not in ("LBFGS", "SparseAdam", "Muon")
)
OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": sgd,
    "adamw": adamw,
    "torch_muon": torch_muon,
    **{f"torch_{name}": partial(of_torch, name) for name in OF_TORCH},
    **{f"our_{name}": partial(ours, name) for name in every_optimizer.NAMES},
}
