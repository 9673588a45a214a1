"""An optimizer that steps entries by themselves steps whole vectors with the same numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipegap.trainer.base.build import locate
from pipegap.trainer.base.flat import LARGEST, Flat, Layout, cloned, wholes
from pipegap.trainer.optimizers import state
from pipegap.trainer.optimizers.averaging import evaluated
from pipegap.trainer.optimizers.flat_optimizer import flattened
from pipegap.trainer.optimizers.routing import Kind, Parameters, alike, is_entrywise
from tests.support.every_optimizer import NAMES, address, maker

KINDS: list[Kind] = ["vector", "matrix", "embedding", "matrix", "vector"]
SHAPES = [torch.Size(shape) for shape in [(7,), (5, 3), (9, 4), (16, 8), (64,)]]
LAYOUT = Layout(SHAPES, [alike(kind) for kind in KINDS])
ENTRYWISE = [name for name in NAMES if is_entrywise(locate(address(name)))]


def laid_out(seed: int) -> Flat:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=generator) for shape in SHAPES]
    wholes = [vector.joined([drawn[i] for i in vector.numbers]) for vector in LAYOUT.vectors]
    return Flat(LAYOUT, wholes)


def trained(make: Callable[[Parameters], Optimizer], *, resumed: bool) -> list[Tensor]:
    """Weights after ten updates, which move to another memory at every update."""
    weights = [nn.Parameter(weight, requires_grad=False) for weight in laid_out(0)]
    optimizer = make(list(zip(KINDS, weights, strict=True)))
    for t in range(10):
        there = laid_out(0)
        torch._foreach_copy_(list(there), weights)
        for weight, data, gradient in zip(weights, there, laid_out(1 + t), strict=True):
            weight.data, weight.grad = data, 0.1 * gradient if t % 2 else gradient
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.step()
        if resumed and t == 4:
            saved = state.copied(state.by_weight(optimizer))
            optimizer = make(list(zip(KINDS, weights, strict=True)))
            state.restore(optimizer, saved)
    return [*map(torch.clone, weights), *evaluated(optimizer, weights)]


@pytest.mark.parametrize("resumed", [False, True], ids=["straight", "resumed"])
@pytest.mark.parametrize("name", ENTRYWISE)
def test_joined_equals_weight_by_weight(name: str, resumed: bool) -> None:
    make = maker(name, weight_decay=0.1, lr=0.01)
    alone = trained(make, resumed=False)
    together = trained(flattened(make), resumed=resumed)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", ENTRYWISE)
def test_the_state_is_that_of_each_weight(name: str) -> None:
    """So checkpoints stay as they are, whichever way they were made."""
    states = []
    for make in (maker(name), flattened(maker(name))):
        weights = [nn.Parameter(weight, requires_grad=False) for weight in laid_out(0)]
        optimizer = make(list(zip(KINDS, weights, strict=True)))
        for weight, gradient in zip(weights, laid_out(1), strict=True):
            weight.grad = gradient
        optimizer.step()
        states.append([state.by_weight(optimizer)[weight] for weight in weights])
    for alone, together in zip(*states, strict=True):
        assert alone["options"] == together["options"]
        assert alone["state"].keys() == together["state"].keys()
        for key, value in alone["state"].items():
            other = together["state"][key]
            assert torch.equal(value, other) if isinstance(value, Tensor) else value == other


def test_lists_of_one_layout_are_few_vectors_and_others_stay_lists() -> None:
    a, b = laid_out(0), laid_out(1)
    assert [whole.shape for whole in wholes(a, b)[0]] == [w.shape for w in wholes(b)[0]]
    assert len(wholes(a, b)[0]) == 2
    assert len(wholes(a, list(b))[0]) == 5
    copy = cloned(a)
    torch._foreach_add_(*wholes(copy, b))
    assert all(torch.equal(c, x + y) for c, x, y in zip(copy, a, b, strict=True))
    assert all(part.data_ptr() % 256 == a[1].data_ptr() % 256 for part in (a[1], a[3]))


def test_a_tensor_lies_in_the_first_vector_that_has_room() -> None:
    shapes = [torch.Size([LARGEST // part]) for part in (2, 1, 3, 8)]
    layout = Layout(shapes, [0] * len(shapes))
    assert [vector.numbers for vector in layout.vectors] == [[0, 2, 3], [1]]
    assert [vector.size <= LARGEST for vector in layout.vectors] == [True, True]
    empty = [torch.empty(vector.size, device="meta") for vector in layout.vectors]
    assert [part.shape for part in layout.parts(empty)] == shapes


def test_a_vector_may_begin_within_a_storage() -> None:
    vector = LAYOUT.vectors[0]
    whole = torch.arange(float(vector.size + 3))[3:]
    first = [part.flatten()[0] for part in vector.parts(whole)]
    assert first == [whole[start] for start in vector.starts]
