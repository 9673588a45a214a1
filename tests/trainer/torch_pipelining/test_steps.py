"""An `update` steps the stage's weights by their gradients, or is refused."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from trainer.torch_pipelining.steps import Steps

Update = Callable[[nn.Module], object]
NONE, CLEARED = "made no optimizer step", "cleared the gradients before the optimizer's step"


def _cleared(optimizer: Optimizer, *, to_none: bool) -> None:
    optimizer.zero_grad(set_to_none=to_none)
    optimizer.step()


def _by_hand(module: nn.Module) -> None:
    with torch.no_grad():
        for weight in module.parameters():
            weight.sub_(weight.grad)


def _two(module: nn.Module, *, clears: bool) -> None:
    """An optimizer for each weight; the second one's loop is that of a tutorial."""
    first, second = (SGD([weight]) for weight in module.parameters())
    first.step()
    if clears:
        second.zero_grad()
    second.step()


def _twice(module: nn.Module) -> None:
    for optimizer in (SGD(module.parameters()), SGD(module.parameters())):
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (lambda module: SGD(module.parameters()).step(), None),
        (lambda module: SGD(module.parameters(), lr=0.0).step(), None),
        (_by_hand, None),
        (lambda module: module.zero_grad(), None),  # this batch is left out
        (lambda module: _two(module, clears=False), None),
        (_twice, None),
        (lambda module: None, NONE),
        (lambda module: SGD(nn.Linear(2, 2).parameters()).step(), NONE),
        (lambda module: _cleared(SGD(module.parameters()), to_none=True), CLEARED),
        (lambda module: _cleared(SGD(module.parameters()), to_none=False), CLEARED),
        (lambda module: _two(module, clears=True), CLEARED),
    ],
    ids=[
        *("step", "no rate", "by hand", "left out", "two", "twice", "nothing", "others"),
        *("zero_grad first", "zeros first", "zero_grad between"),
    ],
)
def test_what_an_update_may_do(update: Update, says: str | None) -> None:
    module = nn.Linear(2, 2)
    module(torch.ones(2)).sum().backward()
    refused = pytest.raises(RuntimeError, match=says) if says else nullcontext()
    with refused, Steps([*module.parameters()], looks=True):
        update(module)


def test_gradients_that_were_zero() -> None:
    """They are before the first update of a stage whose successor begins with zeros."""
    module = nn.Linear(2, 2)
    module(torch.ones(2)).mul(0).sum().backward()
    for looks in (True, False):
        with Steps([*module.parameters()], looks=looks) as steps:
            SGD(module.parameters()).step()
        assert not steps.has_looked
