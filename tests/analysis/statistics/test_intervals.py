"""Intervals agree with scipy and with their definition, and cover what they claim."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from analysis.intervals import UNKNOWN, excludes_zero, hull, mean_interval, ratio_interval


def generator() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize("n", [2, 3, 19])
def test_below_twenty_it_is_students_t(n: int) -> None:
    values = generator().normal(0.3, 0.1, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values, generator()) == pytest.approx((expected.low, expected.high))


def test_by_hand() -> None:
    # Mean 2, standard error 1/√3, t(0.975, 2) = 4.302653.
    low, high = mean_interval(np.array([1.0, 2.0, 3.0]), generator())
    assert (low, high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_from_twenty_on_it_is_a_reproducible_bootstrap() -> None:
    values = generator().exponential(1.0, 20)
    low, high = mean_interval(values, generator())
    assert (low, high) == mean_interval(values, generator())
    picks = np.random.default_rng(9).choice(values, (20_000, 20)).mean(axis=1)
    assert (low, high) == pytest.approx(np.quantile(picks, [0.025, 0.975]), abs=0.03)
    assert not np.allclose((low, high), stats.ttest_1samp(values, 0).confidence_interval(0.95))


def test_a_hull_holds_both_and_is_unknown_if_one_is() -> None:
    assert hull((0.0, 1.0), (-1.0, 0.5)) == (-1.0, 1.0)
    assert np.isnan(hull((0.0, 1.0), UNKNOWN)).all()


def test_one_value_has_no_interval() -> None:
    assert np.isnan(mean_interval(np.array([1.0]), generator())).all()
    assert not excludes_zero(mean_interval(np.array([1.0]), generator()))


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert mean_interval(np.full(3, 0.5), generator()) == (0.5, 0.5)
    assert mean_interval(np.full(25, 0.5), generator()) == (0.5, 0.5)


def tolerance(draws: int) -> float:
    """Four standard deviations of a share of 0.95 among so many."""
    return 4 * np.sqrt(0.95 * 0.05 / draws)


@pytest.mark.parametrize("n", [3, 5])
def test_a_few_seeds_cover_95_percent(n: int) -> None:
    draws, rng = 2_000, generator()
    intervals = [mean_interval(rng.normal(0.1, 0.05, n), rng) for _ in range(draws)]
    covered = np.mean([low <= 0.1 <= high for low, high in intervals])
    assert covered == pytest.approx(0.95, abs=tolerance(draws))


def test_twenty_seeds_cover_what_is_known_of_the_bootstrap() -> None:
    """A percentile interval of a normal mean is that of a t with its quantile 1.96 and its spread
    √((n−1)/n): it covers 93 % at n = 20, and 95 % in the limit."""
    n, draws, rng = 20, 400, generator()
    expected = 1 - 2 * stats.t.sf(1.96 * np.sqrt((n - 1) / n), n - 1)
    intervals = [mean_interval(rng.normal(0.1, 0.05, n), rng) for _ in range(draws)]
    covered = np.mean([low <= 0.1 <= high for low, high in intervals])
    assert covered == pytest.approx(expected, abs=tolerance(draws))
    assert expected > 0.92


def test_the_ends_of_a_ratio_are_where_its_t_test_turns() -> None:
    rng = generator()
    whole = rng.normal(0.3, 0.04, 5)
    left = 0.4 * whole + rng.normal(0, 0.02, 5)
    for end in ratio_interval(left, whole):
        assert stats.ttest_1samp(left - end * whole, 0).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize("n", [3, 5])
def test_a_ratio_covers_95_percent(n: int) -> None:
    draws, rng, hits = 2_000, generator(), 0
    for _ in range(draws):
        whole = rng.normal(0.3, 0.02, n)
        left = 0.4 * whole + rng.normal(0, 0.01, n)
        low, high = ratio_interval(left, whole)
        hits += low <= 0.4 <= high
    assert hits / draws == pytest.approx(0.95, abs=tolerance(draws))


def test_a_ratio_to_what_may_be_zero_is_unknown() -> None:
    assert np.isnan(ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.1, 1.0]))).all()
    assert np.isnan(ratio_interval(np.array([1.0]), np.array([2.0]))).all()
