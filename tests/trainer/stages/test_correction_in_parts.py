"""A correction does to each matrix of a stack what it does to that matrix by itself."""

from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pipegap.trainer.corrections.none import NoCorrection
from pipegap.trainer.optimizers.routing import Kind
from pipegap.trainer.stages.in_parts import correction_in_parts
from tests.support.every_correction import NAMES, maker, variants

T, SHAPE = 8, (3, 4, 16)
KINDS: list[Kind] = ["vector", "experts", "balance"]
SHAPES = [torch.Size(shape) for shape in ((5,), SHAPE, (3,))]
LAGS = [2, 1, 1]


def drawn(t: int, what: int) -> list[Tensor]:
    """One tensor per weight; one matrix of the stack gets no token, so its update is zero."""
    generator = torch.Generator().manual_seed(100 * t + what)
    vector, stack, bias = (torch.randn(shape, generator=generator) for shape in SHAPES)
    stack[1] *= t % 3 != 1
    return [vector, stack, bias]


def apart(tensors: list[Tensor]) -> list[Tensor]:
    vector, stack, _ = tensors
    return [vector, *(matrix.clone() for matrix in stack.unbind())]


def together(tensors: list[Tensor]) -> list[Tensor]:
    return tensors


def train(
    correction: NoCorrection, layout: Any, weights: list[Tensor], updates: range = range(T)
) -> list[Tensor]:
    """What the correction makes of gradients, of weights and of what is read ahead."""
    seen: list[Tensor] = []
    lags = [LAGS[0], *[1] * (len(weights) - 1)]
    for t in updates:
        delays = [min(t, lag) for lag in lags]
        gradients, update = layout(drawn(t, 1)), layout(drawn(t, 2))
        correction.gradient(gradients, weights, delays)
        torch._foreach_sub_(weights, update)
        correction.apply(weights, update, delays)
        ahead = correction.ahead(weights, update)
        correction.look_ahead(weights, t, 1.0)
        ahead = [*ahead, *correction.evaluated(weights)]
        seen += [tensor.clone() for tensors in (gradients, weights, ahead) for tensor in tensors]
    return seen


def stacked(node: Mapping[str, Any]) -> NoCorrection:
    return correction_in_parts(partial(maker(node), T), LAGS, KINDS, SHAPES)


def flat(seen: list[Tensor]) -> list[Tensor]:
    """Those of the vector and of each matrix, without the biases."""
    threes = (seen[i : i + 3] for i in range(0, len(seen), 3))
    return [tensor for three in threes for tensor in apart(three)]


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_is_corrected_matrix_by_matrix(name: str) -> None:
    for node in variants(name):
        whole, plain = stacked(node), maker(node)(T, [2, 1, 1, 1])
        assert whole.needs_update == plain.needs_update
        assert whole.reads_ahead == plain.reads_ahead
        seen = train(whole, together, drawn(0, 0))
        expected = train(plain, apart, apart(drawn(0, 0)))
        assert all(map(torch.equal, flat(seen), expected)), node
        biases = drawn(0, 0)[2] - sum(drawn(t, 2)[2] for t in range(T))
        torch.testing.assert_close(seen[-1], biases)  # a bias is no business of a correction


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_its_state_by_weight(name: str) -> None:
    """A tensor of a stack's state has one part per matrix, and the state can be taken back."""
    for node in variants(name):
        saved, other = stacked(node), stacked(node)
        train(saved, together, drawn(0, 0), range(4))
        vector, stack, bias = deepcopy(saved.state())
        assert bias == {}
        assert all(len(tensor) == SHAPE[0] for tensor in stack.values())
        other.restore([dict(vector), dict(stack), {}])
        after = [train(made, together, drawn(9, 9), range(4, T)) for made in (saved, other)]
        assert all(map(torch.equal, *after))
