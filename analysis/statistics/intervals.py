"""95 % intervals of a mean and of a ratio of two means over the same seeds."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Values = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
UNKNOWN: Interval = (np.nan, np.nan)


def mean_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """Student's t-interval of the mean of n values, shape (n,); unknown for n < 2."""
    low, high = mean_intervals(values, confidence)
    return float(low), float(high)


def mean_intervals(values: Values, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
    """Lower and upper ends for values of shape (..., n): see `Moments.interval`."""
    return moments(values).interval(confidence)


class Moments(NamedTuple):
    """Of n values: mean and standard deviation (n − 1), both of shape (...)."""

    mean: Values
    std: Values
    n: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
        """Lower and upper ends of Student's t-interval of the mean. Where all n values are the same
        infinity, both ends are that; where some are infinite or missing, or n < 2, they are NaN."""
        half = quantile(self.n, confidence) * self.std / np.sqrt(self.n)
        return self.mean - half, self.mean + half


def moments(values: Values) -> Moments:
    """Those of values of shape (..., n). The same infinity n times has a standard deviation of 0;
    for n < 2 both are NaN."""
    n = values.shape[-1]
    if n < 2:
        unknown = np.full(values.shape[:-1], np.nan)
        return Moments(unknown, unknown, n)
    with np.errstate(invalid="ignore"):
        mean = values.mean(axis=-1)
        std = values.std(axis=-1, ddof=1, mean=mean[..., None])
    infinite = np.isinf(mean)
    if infinite.any():
        std = np.where(infinite & (values == values[..., :1]).all(axis=-1), 0.0, std)
    return Moments(mean, std, n)


def ratio_interval(numerator: Values, denominator: Values) -> Interval:
    """Fieller's interval of mean(numerator) / mean(denominator), paired samples of equal length.

    It holds the ratios r at which the t-test of mean(numerator − r · denominator) = 0 does not
    reject (Fieller 1954). Unknown for n < 2, and where the denominator's mean may be 0: such ratios
    are then no interval.
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


def excludes_zero(interval: Interval) -> bool:
    """False for an unknown interval."""
    low, high = interval
    return low > 0 or high < 0


@cache
def quantile(n: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the interval of a mean of n values, in standard errors; NaN for n < 2."""
    return float(stats.t.ppf((1 + confidence) / 2, n - 1))
