"""Where the weights lie: addresses stay, and memory that others read has the right numbers."""

from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pipegap.trainer.delayed import DelayedOptimizer


class Beneath(Optimizer):
    """Steps the vector that its weights are parts of."""

    def __init__(self, flat: Tensor, weights: list[nn.Parameter]) -> None:
        super().__init__(weights, {})
        self.flat = flat

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        given = [w.grad for w in self.param_groups[0]["params"] if w.grad is not None]
        self.flat.sub_(torch.cat(given), alpha=0.1)


class Binds(SGD):
    """Binds new memory to its weights at each step, as many optimizers do."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            weight.data = weight.data.clone()
        super().step()


def trained(optimizer: DelayedOptimizer, weights: list[nn.Parameter]) -> list[list[Tensor]]:
    """What the model reads at each batch, and W(T)."""
    read = []
    for t in range(5):
        read.append([weight.detach().clone() for weight in weights])
        for weight in weights:
            weight.grad = torch.cos(weight.detach() + t)
        optimizer.step()
    optimizer.finish()
    return [*read, [weight.detach().clone() for weight in weights]]


@pytest.mark.parametrize("delay", [1, 2])
def test_weights_may_be_parts_of_a_vector(delay: int) -> None:
    flat = torch.arange(5.0)
    parts = [nn.Parameter(flat[:2]), nn.Parameter(flat[2:])]
    alone = [nn.Parameter(torch.arange(2.0)), nn.Parameter(torch.arange(2.0, 5.0))]
    ours = trained(DelayedOptimizer(Beneath(flat, parts), delay), parts)
    right = trained(DelayedOptimizer(SGD(alone, lr=0.1), delay), alone)
    assert [[w.tolist() for w in of] for of in ours] == [[w.tolist() for w in of] for of in right]
    assert torch.equal(flat, torch.cat(right[-1])), "which the model may read too"


def test_the_weights_of_a_loop_stay_where_they_are() -> None:
    weights, others = ([nn.Parameter(torch.arange(3.0))] for _ in range(2))
    places = [weight.data_ptr() for weight in weights]
    optimizer = DelayedOptimizer(SGD(weights, lr=0.1))
    right = trained(optimizer, weights)
    assert [weight.data_ptr() for weight in weights] == places
    bound = trained(DelayedOptimizer(Binds(others, lr=0.1)), others)
    assert all(map(torch.equal, chain(*bound), chain(*right)))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_weight_may_be_named_twice() -> None:
    once, twice = nn.Parameter(torch.arange(3.0)), nn.Parameter(torch.arange(3.0))
    ours = trained(DelayedOptimizer(SGD([twice, twice], lr=0.1)), [twice])
    right = trained(DelayedOptimizer(SGD([once, once.clone().detach()], lr=0.2)), [once])
    for mine, others in zip(ours, right, strict=True):
        torch.testing.assert_close(mine[0], others[0])
