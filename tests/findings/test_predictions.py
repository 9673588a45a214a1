"""Rank correlations against scipy's, and what predictions are made of."""

import math
from itertools import permutations

import pytest
from scipy import stats

from findings.code.calls.theory import _rank_correlation as rank_correlation
from findings.code.cells import groups, settings
from findings.code.published import View, read

ONE, OTHER = [1.0, 2.0, 2.0, 5.0, 7.0, 3.0, 0.5], [2.0, 1.0, 4.0, 6.0, 5.0, 9.0, 0.1]


def test_rho_and_p_are_scipys_also_with_ties() -> None:
    """p: by scipy's ρ of each of the 120 orders of five."""
    assert rank_correlation(ONE, OTHER).rho == pytest.approx(stats.spearmanr(ONE, OTHER).statistic)
    first, second = ONE[:5], OTHER[:5]
    orders = [stats.spearmanr(first, order).statistic for order in permutations(second)]
    observed = abs(stats.spearmanr(first, second).statistic)
    as_far = [abs(rho) >= observed - 1e-9 for rho in orders]
    assert rank_correlation(first, second).p == pytest.approx(sum(as_far) / math.factorial(5))


def test_the_best_order_of_four_is_one_of_two_in_24() -> None:
    correlation = rank_correlation([1, 2, 3, 4], [2, 3, 5, 7])
    assert (correlation.rho, correlation.p) == (pytest.approx(1.0), pytest.approx(2 / 24))
    assert math.isnan(correlation.low)


def test_the_interval_is_that_of_the_published_formula() -> None:
    """Bonett and Wright: tanh(atanh ρ ± 1.96 √((1 + ρ² / 2) / (n − 3)))."""
    correlation = rank_correlation([1, 2, 3, 4, 5, 6, 7, 8], [2, 1, 4, 3, 6, 5, 8, 7])
    half = 1.959964 * math.sqrt((1 + correlation.rho**2 / 2) / 5)
    assert correlation.low == pytest.approx(math.tanh(math.atanh(correlation.rho) - half), rel=1e-6)
    assert correlation.high == pytest.approx(
        math.tanh(math.atanh(correlation.rho) + half), rel=1e-6
    )


@pytest.mark.parametrize("pairs", [([1.0], [2.0]), ([1.0, 1.0], [1.0, 2.0]), ([0.0] * 10,) * 2])
def test_what_has_no_ranks_is_refused(pairs: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="no ranks"):
        rank_correlation(*pairs)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_predictions_are_of_the_settings_of_the_trials() -> None:
    of_momenta = groups(View(read("momentum/trials_few_updates")), "optimizer.momentum")
    limits = [of.theory() for (optimizer, _), of in of_momenta.items() if optimizer == "adamw"]
    expected = [2 * (1 + momentum) / (1 - momentum) for momentum in (0.8, 0.9, 0.95, 0.99)]
    assert [of.sync for of in limits] == pytest.approx(expected, rel=1e-4)
    assert [of.delayed for of in limits] == pytest.approx([1.0] * 4, rel=1e-4)
    assert [of.corrected for of in limits] == [of.delayed for of in limits]


def test_a_setting_that_a_trial_lacks_is_that_of_the_yaml() -> None:
    merged = settings("muon", {"optimizer.momentum": 0.5, "optimizer.nesterov": None})
    assert (merged["momentum"], merged["nesterov"]) == (0.5, True)
