"""The base of our own matrix optimizers: all matrices of one shape are updated as one batch."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from trainer.optimizers.routing import Group


class Batched(Optimizer):
    """W ← (1 − lr · weight_decay) W − lr · `update`; each matrix has a state of named tensors."""

    def __init__(self, groups: list[Group], **defaults: float | bool) -> None:
        super().__init__(groups, dict(defaults))

    @abstractmethod
    def start(self, matrix: Tensor) -> dict[str, Tensor]:
        """The state of a matrix before its first update."""

    @abstractmethod
    def update(self, group: Group, gradient: Tensor, state: dict[str, Tensor]) -> Tensor:
        """The update of a batch of matrices; changes `state` in place.

        All tensors are [matrices, rows, columns] unless the optimizer says otherwise.
        """

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weights in _by_shape(group["params"]):
                self._step(group, weights)

    def _step(self, group: Group, weights: list[Tensor]) -> None:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight].update(self.start(weight))
        states = [self.state[weight] for weight in weights]
        batch = {key: torch.stack([state[key] for state in states]) for key in states[0]}
        update = self.update(
            group, torch.stack([w.grad for w in weights if w.grad is not None]), batch
        )
        for key, values in batch.items():
            torch._foreach_copy_([state[key] for state in states], list(values.unbind()))
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, list(update.unbind()), alpha=-group["lr"])


def _by_shape(weights: Iterable[Tensor]) -> list[list[Tensor]]:
    found = defaultdict(list)
    for weight in weights:
        if weight.grad is not None:
            found[weight.shape].append(weight)
    return list(found.values())
