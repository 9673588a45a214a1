"""Learning-rate factors against their formulas."""

import math

import pytest

from pipegap.trainer.lr import constant, cosine, inverse_sqrt, linear, wsd

T = 100


def test_warm_up_is_never_zero_and_ends_at_the_peak() -> None:
    for factor in (
        cosine(T, warmup=0.1, final=0.1),
        linear(T, warmup=0.1, final=0.1),
        wsd(T, warmup=0.1, decay=0.2, final=0.1),
        constant(T, warmup=0.1),
        inverse_sqrt(T, warmup=0.1),
    ):
        assert [factor(t) for t in range(10)] == pytest.approx([(t + 1) / 10 for t in range(10)])
        assert max(factor(t) for t in range(T)) == 1


def test_decays() -> None:
    half = 10 + 89 / 2
    assert cosine(T, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert cosine(T, warmup=0.1, final=0.1)(round(half)) == pytest.approx(
        0.1 + 0.9 * (1 + math.cos(math.pi * (round(half) - 10) / 89)) / 2
    )
    assert linear(T, warmup=0.1, final=0.1)(99) == pytest.approx(0.1)
    assert wsd(T, warmup=0.1, decay=0.2, final=0.0)(80) == 1
    assert wsd(T, warmup=0.1, decay=0.2, final=0.0)(99) == pytest.approx(0)
    assert constant(T, warmup=0.0)(99) == 1
    assert inverse_sqrt(T, warmup=0.1)(39) == pytest.approx(0.5)
