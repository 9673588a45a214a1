"""95 % intervals of a mean and of a ratio of two means over the same seeds."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
UNKNOWN: Interval = (np.nan, np.nan)
BOOTSTRAP_FROM = 20
"""Below this n a bootstrap is too narrow (of 3 seeds it covers 75 %, not 95 %)."""
NUM_RESAMPLES = 9_999


def mean_interval(values: Values, generator: np.random.Generator) -> Interval:
    """Student's t below n = 20, from there on the percentile bootstrap; unknown for n < 2."""
    if len(values) < 2:
        return UNKNOWN
    if len(values) < BOOTSTRAP_FROM:
        half = quantile(len(values)) * float(stats.sem(values))
        return float(np.mean(values)) - half, float(np.mean(values)) + half
    resampled = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=generator,
    )
    return float(resampled.confidence_interval.low), float(resampled.confidence_interval.high)


def ratio_interval(numerator: Values, denominator: Values) -> Interval:
    """Fieller's interval of mean(numerator) / mean(denominator), paired samples of equal length.

    All ratios r at which the t-test of mean(numerator − r · denominator) = 0 does not reject
    (Fieller 1954). Unknown for n < 2, and where the denominator's mean may be 0: the set of such
    ratios is then not an interval.
    """
    n = len(numerator)
    if n < 2:
        return UNKNOWN
    (var_n, cov), (_, var_d) = np.cov(numerator, denominator) * quantile(n) ** 2 / n
    mean_n, mean_d = np.mean(numerator), np.mean(denominator)
    # (mean_n − r mean_d)² ≤ var_n − 2 r cov + r² var_d, a quadratic inequality in r.
    a, b, c = mean_d**2 - var_d, mean_n * mean_d - cov, mean_n**2 - var_n
    if a <= 0:
        return UNKNOWN
    root = np.sqrt(max(b**2 - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)


def hull(one: Interval, other: Interval) -> Interval:
    """The smallest interval that holds both; unknown if one of them is."""
    return float(np.minimum(one[0], other[0])), float(np.maximum(one[1], other[1]))


def excludes_zero(interval: Interval) -> bool:
    """False for an unknown interval."""
    low, high = interval
    return low > 0 or high < 0


@cache
def quantile(n: int) -> float:
    """Half the width of the interval of a mean of n values (n > 1), in standard errors."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
