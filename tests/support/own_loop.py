"""A training loop as people write it, around a `DelayedOptimizer`, on the toy model."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from pipegap.trainer.delayed import DelayedOptimizer
from pipegap.trainer.optimizers.routing import kinds
from tests.support import toy

KEEP = ("weights", "gradients")
"""How a delay can be made."""


class Loop:
    """Model, wrapped optimizer, scheduler. `optimizer` gets pairs of a kind and a weight."""

    def __init__(self, optimizer: Callable[..., Optimizer], **options: Any) -> None:
        torch.set_num_threads(1)
        self.module: nn.Module = toy.modules(1)[0]
        kind = kinds(self.module)
        inner = optimizer([(kind[name], p) for name, p in self.module.named_parameters()])
        self.delayed = DelayedOptimizer(inner, **options)
        self.scheduler = LambdaLR(self.delayed, toy.lr_factor)

    def run(
        self, batches: Iterable[int], microbatches: int = 1, clip_norm: float | None = None
    ) -> list[float]:
        """The mean loss of each batch."""
        losses = []
        for t in batches:
            self.delayed.zero_grad()
            total = 0.0
            for rows in toy.batch(t).chunk(microbatches):
                value = toy.loss(self.module(rows[:, :-1]), rows[:, 1:]) / microbatches
                value.backward()
                total += value.item()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(self.module.parameters(), clip_norm)
            self.delayed.step()
            self.scheduler.step()
            losses.append(total)
        return losses

    def weights(self) -> list[Tensor]:
        """The newest ones, as the model shows them."""
        with self.delayed.newest():
            return [weight.detach().clone() for weight in self.module.parameters()]
