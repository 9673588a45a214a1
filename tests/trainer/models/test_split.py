"""Stages are balanced by counted work; the best cut is found among all."""

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipegap.trainer.base.build import build
from pipegap.trainer.config.compose import compose
from pipegap.trainer.models.recipe import balanced


def every_cut(num_layers: int, p: int) -> list[list[int]]:
    """Sizes of all splits whose first p − 1 stages have a layer."""
    cuts = combinations(range(1, num_layers + 1), p - 1)
    return [[b - a for a, b in pairwise((0, *cut, num_layers))] for cut in cuts]


def by_trying_all(work: list[int], p: int, head: int) -> list[int]:
    """Sizes of the stages, by the rule in `balanced`, of all cuts."""

    def rank(sizes: list[int]) -> tuple[int, int]:
        ends = [0, *accumulate(sizes)]
        stages = [sum(work[a:b]) for a, b in pairwise(ends)]
        return max(*stages[:-1], stages[-1] + head), -sizes[-1]

    if p == 1:
        return [len(work)]
    at_last = min(every_cut(len(work), p), key=rank)[-1]
    return [*by_trying_all(work[: len(work) - at_last], p - 1, 0), at_last]


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(0, 12))
def test_it_is_the_best_of_all_cuts(data: st.DataObject, work: list[int], head: int) -> None:
    p = data.draw(st.integers(1, len(work)))
    split = balanced(tuple(work), p, head)
    assert [layer for layers in split for layer in layers] == list(range(len(work)))
    assert [len(layers) for layers in split] == by_trying_all(work, p, head)


@given(st.data(), st.integers(1, 12), st.integers(0, 12))
def test_equal_layers_before_the_last_stage_are_spread_evenly(
    data: st.DataObject, num_layers: int, head: int
) -> None:
    p = data.draw(st.integers(1, num_layers))
    *sizes, _ = (len(layers) for layers in balanced((1,) * num_layers, p, head))
    assert sizes == sorted(sizes)
    assert not sizes or sizes[-1] - sizes[0] <= 1


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
