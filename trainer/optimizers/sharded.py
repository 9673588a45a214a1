"""An optimizer whose states are divided among data-parallel replicas (ZeRO, stage 1).

Every replica has all weights and the same gradients. Each steps the weights that it owns, and gives
them to the others: so it keeps the states of its own weights alone. A weight has one owner, as a
whole, so that an optimizer of matrices sees whole matrices (arXiv 1910.02054, section 5.1; torch's
ZeroRedundancyOptimizer divides in the same way, and its fully_shard cuts matrices into rows).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from trainer.optimizers.averaging import averages, evaluated
from trainer.optimizers.routing import Kind, Parameters
from trainer.optimizers.state import Observer, State, Wrapper

Make = Callable[[Parameters], Optimizer]
Share = Callable[[Sequence[tuple[int, Tensor]]], None]
"""Gives every replica, in place, each tensor as the replica named beside it has it."""


def owners(sizes: Sequence[int], num_replicas: int) -> list[int]:
    """For each weight the replica that owns it: the largest first, to whoever has the least.

    `sizes`: entries of the state of each weight, as far as they are known.
    """
    loads = [0] * num_replicas
    owned_by = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owned_by[index] = loads.index(min(loads))
        loads[owned_by[index]] += sizes[index]
    return owned_by


def sharded(
    make: Make,
    num_kept: Callable[[Kind, Sequence[int]], int],
    replica: int,
    num_replicas: int,
    share: Share,
) -> Make:
    """Divides the states of the optimizers that `make` returns; this process is `replica`.

    `num_kept` says how many numbers the optimizer keeps for a weight: `kept_entries` in routing.py.
    """

    def divided(parameters: Parameters) -> Optimizer:
        sizes = [num_kept(kind, weight.shape) for kind, weight in parameters]
        owned_by = owners(sizes, num_replicas)
        weights = [weight for _, weight in parameters]
        return Sharded(make(parameters), weights, owned_by, replica, share)

    return divided


class Sharded(Wrapper):
    """The optimizer `inner` of `weights`, of which replica `owned_by[i]` steps the i-th.

    Groups and state belong to `inner`: a weight of another replica has options and no state.
    """

    def __init__(
        self,
        inner: Optimizer,
        weights: Sequence[nn.Parameter],
        owned_by: Sequence[int],
        replica: int,
        share: Share,
    ) -> None:
        self._inner, self._weights, self._share = inner, list(weights), share
        self._owned_by = list(owned_by)
        mine = [w for w, owner in zip(weights, owned_by, strict=True) if owner == replica]
        self.owned = frozenset(mine)
        """The weights that this replica steps."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of the inner optimizer."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state of the inner optimizer."""
        return self._inner.state

    def observe(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Shows the inner optimizer the gradients of the weights of this replica."""
        assert isinstance(self._inner, Observer)
        self._inner.observe({w: g for w, g in gradients.items() if w in self.owned})

    @torch.no_grad()
    def evaluation_weights(self) -> Mapping[Tensor, Tensor]:
        """Weight → tensor to evaluate in its place, on every replica as on its owner."""
        if not averages(self._inner):
            return {weight: weight for weight in self._weights}
        shown = evaluated(self._inner, self._weights)
        if any(s is not weight for s, weight in zip(shown, self._weights, strict=True)):
            self._exchange(shown)
        return dict(zip(self._weights, shown, strict=True))

    @override
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight in self._weights:
            if weight not in self.owned:
                weight.grad = None
        self._inner.step()
        self._exchange([weight.data for weight in self._weights])

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        self._inner.zero_grad(set_to_none)

    @override
    def load_state_dict(self, state_dict: Any) -> None:
        self._inner.load_state_dict(state_dict)

    def _exchange(self, tensors: Sequence[Tensor]) -> None:
        self._share(list(zip(self._owned_by, tensors, strict=True)))


def owned(
    optimizer: Optimizer, saved: Mapping[nn.Parameter, State]
) -> Mapping[nn.Parameter, State]:
    """What this replica restores of a whole saved state; for most optimizers all of it."""
    if not isinstance(optimizer, Sharded):
        return saved
    return {w: s if w in optimizer.owned else {**s, "state": {}} for w, s in saved.items()}
