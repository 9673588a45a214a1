"""What bench.mixtures compares is comparable: the same size, or the same work."""

import torch

from bench.mixtures import MIXTURE, apart, dense_as_large, recipe_of, weights_of
from tests.support.moe import MOE


def test_the_dense_model_is_as_large_as_the_mixture() -> None:
    target = recipe_of(MIXTURE).num_parameters
    unit = 4 * 3 * 96  # one more unit of width: three matrices in each of four layers
    assert abs(dense_as_large(target).num_parameters - target) <= unit / 2


def test_a_weight_per_matrix_holds_the_same_numbers() -> None:
    weights = weights_of(MOE)
    own = apart(weights)
    assert len(own) == len(weights) + 4 * 3 * (8 - 1)
    assert {kind for kind, _ in own} == {"matrix", "embedding", "vector"}
    for of in (lambda weight: weight.data, lambda weight: weight.grad):
        flat, flat_own = (torch.cat([of(w).flatten() for _, w in ws]) for ws in (weights, own))
        assert torch.equal(flat, flat_own)
