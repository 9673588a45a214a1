"""Every optimizer does to each matrix of a stack what it does to that matrix by itself, and to a
vector with two dimensions what it does to its entries in one.
"""

import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.optimizers import state
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.in_parts import optimizer_in_parts
from pipegap.trainer.optimizers.routing import Kind, is_entrywise
from pipegap.trainer.stages.update import dry_update
from tests.support.every_optimizer import NAMES, maker

every = pytest.mark.parametrize("name", NAMES)
Named = list[tuple[Kind, nn.Parameter]]
SHAPES: dict[Kind, tuple[int, ...]] = {"experts": (4, 6, 16), "vector": (5, 3), "matrix": (6, 16)}
"""A vector may have two dimensions, as a convolution's weight has. A matrix takes a multiple of 64
bytes, so that those of a stack lie as those by themselves do. BLAS rounds a product of matrices
that lie otherwise in another order."""
UPDATES = 5


def drawn(t: int) -> dict[Kind, Tensor]:
    """Weights or gradients: one stack, one vector, one matrix of the stack's shape."""
    generator = torch.Generator().manual_seed(t)
    return {kind: torch.randn(shape, generator=generator) for kind, shape in SHAPES.items()}


def apart(tensors: Mapping[Kind, Tensor]) -> list[tuple[Kind, Tensor]]:
    """The stack's matrices and the vector in one dimension as weights of their own."""
    return [(kind, part.clone()) for kind in tensors for part in parts_of(kind, tensors[kind])]


def stacked(name: str) -> tuple[Named, Optimizer]:
    factory = maker(name, precondition_every=3)
    weights: Named = [(kind, nn.Parameter(w)) for kind, w in drawn(99).items()]
    weights.append(("balance", nn.Parameter(torch.zeros(4))))
    optimizer = optimizer_in_parts(factory, weights, is_entrywise=is_entrywise(factory.func))
    return weights, optimizer


def step(weights: Named, optimizer: Optimizer, t: int) -> None:
    gradients = drawn(t)
    for kind, weight in weights:
        weight.grad = gradients[kind] if kind in gradients else torch.arange(4.0) - 1
    step_at(optimizer)


def step_at(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    optimizer.step()


def by_itself(name: str) -> list[Tensor]:
    """The weights after the updates if every matrix of the stack is a weight of its own."""
    parts = apart(drawn(99))
    weights: Named = [("matrix" if k == "experts" else k, nn.Parameter(w)) for k, w in parts]
    optimizer = maker(name, precondition_every=3)(weights)
    for t in range(UPDATES):
        for (_, weight), (_, gradient) in zip(weights, apart(drawn(t)), strict=True):
            weight.grad = gradient
        step_at(optimizer)
    return [w.detach() for w in evaluated(optimizer, [w for _, w in weights])]


def values(weights: Named, optimizer: Optimizer) -> list[Tensor]:
    shown = evaluated(optimizer, [w for _, w in weights])
    return [part for (kind, _), w in zip(weights, shown, strict=True) for part in parts_of(kind, w)]


def parts_of(kind: Kind, weight: Tensor) -> list[Tensor]:
    if kind == "experts":
        return list(weight.detach().unbind())
    return [weight.detach().flatten() if kind == "vector" else weight.detach()]


@every
def test_a_stack_is_stepped_matrix_by_matrix(name: str) -> None:
    """Balance biases step by the sign, and change nothing else."""
    weights, optimizer = stacked(name)
    for t in range(UPDATES):
        step(weights, optimizer, t)
    stepped, expected = values(weights, optimizer), by_itself(name)
    assert stepped.pop().tolist() == [UPDATES, 0, -UPDATES, -UPDATES]
    assert len(stepped) == len(expected)
    assert all(map(torch.equal, stepped, expected))
    members = {id(w) for group in optimizer.param_groups for w in group["params"]}
    assert members == {id(w) for _, w in weights}


@every
def test_a_resumed_optimizer_goes_on_to_the_last_bit(name: str) -> None:
    """Through a file that holds plain data and tensors alone; a dry update changes nothing."""
    whole, stopped, resumed = (stacked(name) for _ in range(3))
    for t in range(UPDATES):
        step(*whole, t)
    for t in range(3):
        dry_update(stopped[1], [w for _, w in stopped[0]], gradients(stopped[0], 50 + t))
        step(*stopped, t)
    saved = state.by_weight(stopped[1])
    file = io.BytesIO()
    torch.save([(w.data, saved[w]) for _, w in stopped[0]], file)
    file.seek(0)
    loaded: list[tuple[Tensor, Any]] = torch.load(file, weights_only=True)
    for (_, weight), (data, _) in zip(resumed[0], loaded, strict=True):
        weight.data.copy_(data)
    pairs = zip(resumed[0], loaded, strict=True)
    state.restore(resumed[1], {weight: saved_state for (_, weight), (_, saved_state) in pairs})
    for t in range(3, UPDATES):
        step(*resumed, t)
    assert all(map(torch.equal, values(*resumed), values(*whole)))


def gradients(weights: Named, t: int) -> list[Tensor]:
    gradients = drawn(t)
    return [gradients.get(kind, torch.ones(4)) for kind, _ in weights]


@every
def test_entrywise_optimizers_are_declared_so(name: str) -> None:
    """A stack of an entrywise optimizer is one weight: half the time of an update, or less."""
    stack, tall = drawn(99)["experts"], nn.Parameter(drawn(99)["experts"].flatten(0, 1))
    matrices = [nn.Parameter(matrix.clone()) for matrix in stack]
    factory = maker(name, precondition_every=3)
    for weights in (matrices, [tall]):
        optimizer = factory([("matrix", weight) for weight in weights])
        for t in range(UPDATES):
            parts = drawn(t)["experts"].flatten(0, 1).chunk(len(weights))
            for weight, gradient in zip(weights, parts, strict=True):
                weight.grad = gradient.clone()
            step_at(optimizer)
    assert is_entrywise(factory.func) == torch.equal(torch.cat(matrices), tall)
