"""Intervals agree with scipy and with their definition, and cover what they claim."""

import numpy as np
import pytest
from scipy import stats

from analysis.statistics.intervals import (
    excludes_zero,
    mean_interval,
    mean_intervals,
    ratio_interval,
)


def generator() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize("n", [2, 3, 20, 64])
def test_it_is_students_t_at_every_n(n: int) -> None:
    values = generator().normal(0.3, 0.1, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("interval", "excludes"),
    [
        ((0.1, 1.0), True),
        ((-1.0, -0.1), True),
        ((-1.0, 1.0), False),
        ((0.0, 1.0), False),
        ((-1.0, 0.0), False),
        ((np.nan, np.nan), False),
    ],
)
def test_zero_is_excluded_on_either_side(interval: tuple[float, float], excludes: bool) -> None:
    assert excludes_zero(interval) is excludes


def test_many_means_are_as_one_by_one_and_a_confidence_is_a_choice() -> None:
    values = generator().normal(0.1, 0.05, (4, 3, 5))
    low, high = mean_intervals(values, 0.99)
    expected = stats.ttest_1samp(values, 0, axis=-1).confidence_interval(0.99)
    assert low == pytest.approx(expected.low)
    assert high == pytest.approx(expected.high)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([1.0], (np.nan, np.nan)),
        ([0.5] * 3, (0.5, 0.5)),
        ([0.5] * 25, (0.5, 0.5)),
        ([np.inf] * 3, (np.inf, np.inf)),
        ([np.inf, 1.0, 2.0], (np.nan, np.nan)),
        ([np.inf, -np.inf], (np.nan, np.nan)),
    ],
    ids=["one value", "equal", "many equal", "all infinite", "some infinite", "both infinities"],
)
def test_values_without_a_spread(values: list[float], interval: tuple[float, float]) -> None:
    assert np.array_equal(mean_interval(np.array(values)), interval, equal_nan=True)


def test_the_ends_of_a_ratio_are_where_its_t_test_turns() -> None:
    rng = generator()
    whole = rng.normal(0.3, 0.04, 5)
    left = 0.4 * whole + rng.normal(0, 0.02, 5)
    for end in ratio_interval(left, whole):
        assert stats.ttest_1samp(left - end * whole, 0).pvalue == pytest.approx(0.05)


def test_a_ratio_to_what_may_be_zero_is_unknown() -> None:
    assert np.isnan(ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.1, 1.0]))).all()
    assert np.isnan(ratio_interval(np.array([1.0]), np.array([2.0]))).all()
