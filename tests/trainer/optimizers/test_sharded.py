"""An optimizer divided among replicas makes the undivided one's weights, to the last bit."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from tests.support.every_optimizer import NAMES, maker
from trainer.config.combinations import NOT_SHARDED
from trainer.optimizers.averaging import evaluated
from trainer.optimizers.in_parts import optimizer_in_parts
from trainer.optimizers.routing import Kind, Parameters, is_entrywise, kept_entries
from trainer.optimizers.sharded import Sharded, owners, sharded
from trainer.optimizers.state import by_weight

SHAPES: list[tuple[Kind, tuple[int, ...]]] = [
    ("embedding", (65, 24)),
    *[("matrix", (24, 24))] * 5,
    *[("matrix", (32, 24)), ("matrix", (24, 32)), ("matrix", (32, 24))],
    *[("vector", (24,))] * 3,
    ("experts", (3, 24, 16)),
]
UPDATES = 6


def parameters() -> Parameters:
    generator = torch.Generator().manual_seed(0)
    drawn = [(kind, 0.1 * torch.randn(shape, generator=generator)) for kind, shape in SHAPES]
    return [(kind, nn.Parameter(weight, requires_grad=False)) for kind, weight in drawn]


def gradients(t: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + t)
    return [torch.randn(shape, generator=generator) for _, shape in SHAPES]


class Replica:
    """The weights of one replica, or of all, with their optimizer and random numbers."""

    def __init__(self, make: Callable[[Parameters], Optimizer]) -> None:
        weights = parameters()
        self.weights = [weight for _, weight in weights]
        self.optimizer = make(weights)
        self.random = torch.manual_seed(0).get_state()

    def step(self, t: int) -> None:
        torch.set_rng_state(self.random)
        for weight, gradient in zip(self.weights, gradients(t), strict=True):
            weight.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.random = torch.get_rng_state()


class Replicas:
    """Replicas in one process: what each shares lies here until all have shared."""

    def __init__(self, name: str, number: int) -> None:
        make, kept = undivided(name), kept_entries(maker(name).func)
        self._shared: dict[int, Sequence[tuple[int, Tensor]]] = {}
        self.all = [
            Replica(sharded(make, kept, index, number, self._keep(index)))
            for index in range(number)
        ]

    def _keep(self, index: int) -> Callable[[Sequence[tuple[int, Tensor]]], None]:
        return lambda tensors: self._shared.update({index: tensors})

    def exchange(self) -> None:
        for tensors in self._shared.values():
            for position, (owner, tensor) in enumerate(tensors):
                tensor.copy_(self._shared[owner][position][1])
        self._shared.clear()

    def step(self, t: int) -> None:
        for replica in self.all:
            replica.step(t)
        self.exchange()

    def evaluated(self) -> list[list[Tensor]]:
        averages = [evaluated(replica.optimizer, replica.weights) for replica in self.all]
        self.exchange()
        return averages


def undivided(name: str) -> Callable[[Parameters], Optimizer]:
    make = maker(name)
    return lambda weights: optimizer_in_parts(make, weights, is_entrywise=is_entrywise(make.func))


def size(state: object) -> int:
    """Entries of all tensors in a state."""
    return sum(leaf.numel() for leaf in tree_leaves(state) if isinstance(leaf, Tensor))


@pytest.mark.parametrize("number", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer(name: str, number: int) -> None:
    """Those of which it does not hold are refused, and only those."""
    whole, replicas = Replica(undivided(name)), Replicas(name, number)
    is_equal = True
    for t in range(UPDATES):
        whole.step(t)
        replicas.step(t)
        averages = evaluated(whole.optimizer, whole.weights)
        for replica, shown in zip(replicas.all, replicas.evaluated(), strict=True):
            is_equal &= all(map(torch.equal, replica.weights, whole.weights))
            is_equal &= all(map(torch.equal, shown, averages))
    assert is_equal == (name not in NOT_SHARDED)

    parts = [by_weight(replica.optimizer) for replica in replicas.all]
    sizes = [sum(size(weight["state"]) for weight in part.values()) for part in parts]
    total = sum(size(weight["state"]) for weight in by_weight(whole.optimizer).values())
    assert sum(sizes) == total
    assert total == 0 or max(sizes) < total * (0.65 if number == 2 else 0.5)


def test_a_weight_has_one_owner_and_the_loads_are_close() -> None:
    sizes = [7, 1, 5, 5, 4, 2]
    owned_by = owners(sizes, 2)
    loads = [sum(s for s, o in zip(sizes, owned_by, strict=True) if o == who) for who in (0, 1)]
    assert sorted(loads) == [12, 12]
    assert owners(sizes, 1) == [0] * 6
    assert sorted(owners([1, 1], 4)) == [0, 1]


def test_a_replica_without_weights_of_its_own_steps_nothing() -> None:
    parts = [("matrix", nn.Parameter(torch.ones(4, 4), requires_grad=False))]
    seen: list[int] = []
    make = sharded(
        undivided("adamw"),
        lambda kind, shape: 2,
        1,
        2,
        lambda shared: seen.extend(o for o, _ in shared),
    )
    optimizer = make(parts)  # type: ignore[arg-type]
    assert isinstance(optimizer, Sharded)
    parts[0][1].grad = torch.ones(4, 4)
    optimizer.step()
    assert torch.equal(parts[0][1], torch.ones(4, 4))
    assert seen == [0]
    assert not optimizer.owned
