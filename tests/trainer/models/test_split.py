"""Stages are balanced by counted work; the best cut is found among all."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.base.build import build
from trainer.config.compose import compose
from trainer.models.split import balanced


def every_cut(num_layers: int, p: int) -> list[list[int]]:
    """Sizes of all splits whose first p − 1 stages have a layer."""
    cuts = combinations(range(1, num_layers + 1), p - 1)
    return [[b - a for a, b in pairwise((0, *cut, num_layers))] for cut in cuts]


@given(st.data(), st.integers(1, 9), st.floats(0, 12, allow_nan=False))
def test_no_cut_has_a_faster_slowest_stage(
    data: st.DataObject, num_layers: int, head: float
) -> None:
    p = data.draw(st.integers(1, num_layers))
    split = balanced(num_layers, p, head)
    assert [layer for layers in split for layer in layers] == list(range(num_layers))

    def slowest(sizes: list[int]) -> float:
        return max(*sizes[:-1], sizes[-1] + head) if p > 1 else sizes[0] + head

    found = slowest([len(layers) for layers in split])
    assert found == min(map(slowest, every_cut(num_layers, p)))


@pytest.mark.parametrize(
    ("seq_len", "num_stages", "sizes"),
    [
        # The head, 49,152 · 576 = 28.3 M products a token, is 8 layers of 3.54 M;
        (0, 2, [19, 11]),
        (0, 4, [9, 9, 10, 2]),
        # causal attention over 2,048 tokens adds 1.18 M to each layer: 6 layers.
        (2048, 2, [18, 12]),
        (2048, 4, [9, 9, 9, 3]),
    ],
)
def test_of_smollm2_135m(seq_len: int, num_stages: int, sizes: list[int]) -> None:
    model = build(compose(["model=smollm2_135m", "data=fineweb_edu"])["model"])
    assert [len(layers) for layers in model.split(num_stages, seq_len)] == sizes
