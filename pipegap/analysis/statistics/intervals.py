"""95 % intervals: of a mean, of a ratio of two means, and of the difference of two bests.

And how many pairs are enough: the gap that n of them detect, and those that a precision needs. Both
assume Student's t-interval of paired gaps that are normally distributed with standard deviation
`sd`.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Values = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
POWER = 0.8
"""The probability with which what is called detectable is detected."""
UNKNOWN: Interval = (np.nan, np.nan)
SEEN = ((0.997, CONFIDENCE), (0.99, 0.99))
"""Of a share: with which confidence the whole is not 0, and the confidence of the share's interval.
So the interval covers 95 % of the shares that are told, where the true whole is two standard errors
or more, and 90 % where it is nothing: tests/analysis/statistics/test_intervals.py. The width is no
reason to leave a share untold: of the narrow intervals of weak wholes 70 to 90 % cover."""
UNTOLD = "too weak for a share"
"""What stands in the place of a share of a whole that may be 0."""


def mean_interval(values: Values, confidence: float = CONFIDENCE) -> Interval:
    """Student's t-interval of the mean of n values, shape (n,); unknown for n < 2."""
    low, high = mean_intervals(values, confidence)
    return float(low), float(high)


def mean_with_ends(values: Values) -> tuple[float, float, float]:
    """The mean of n values, shape (n,), and both ends of its interval; NaN as far as unknown."""
    return (float(values.mean()) if len(values) else np.nan, *mean_interval(values))


def ends_text(low: float, high: float, form: str) -> str:
    """` [+0.2120, +0.2640]` by the format; empty for an unknown interval."""
    return "" if np.isnan(low) else f" [{low:{form}}, {high:{form}}]"


def mean_intervals(values: Values, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
    """Lower and upper ends for values of shape (..., n): see `Moments.interval`."""
    return moments(values).interval(confidence)


class Moments(NamedTuple):
    """Mean and standard deviation (n − 1) of n values, both of shape (...)."""

    mean: Values
    std: Values
    n: int

    def interval(self, confidence: float = CONFIDENCE) -> tuple[Values, Values]:
        """Lower and upper ends of Student's t-interval of the mean. Where all n values are the same
        infinity, both ends are that; where some are infinite or missing, or n < 2, they are NaN."""
        half = quantile(self.n, confidence) * self.std / np.sqrt(self.n)
        return self.mean - half, self.mean + half


def moments(values: Values) -> Moments:
    """The moments of values of shape (..., n). The same infinity n times has a standard deviation
    of 0; for n < 2 both moments are NaN."""
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


def ratio_interval(
    numerator: Values, denominator: Values, confidence: float = CONFIDENCE
) -> Interval:
    """Fieller's interval of mean(numerator) / mean(denominator), paired samples of equal length.

    It holds the ratios r at which the t-test of mean(numerator − r · denominator) = 0 does not
    reject (Fieller 1954). Unknown for n < 2, and where the denominator's mean may be 0: such ratios
    are then no interval.
    """
    n = len(numerator)
    if n < 2:
        return UNKNOWN
    (var_n, cov), (_, var_d) = np.cov(numerator, denominator) * quantile(n, confidence) ** 2 / n
    mean_n, mean_d = np.mean(numerator), np.mean(denominator)
    # (mean_n − r mean_d)² ≤ var_n − 2 r cov + r² var_d, a quadratic inequality in r.
    a, b, c = mean_d**2 - var_d, mean_n * mean_d - cov, mean_n**2 - var_n
    if a <= 0:
        return UNKNOWN
    root = np.sqrt(max(b**2 - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)


def share_interval(part: Values, whole: Values) -> Interval:
    """The interval of mean(part) / mean(whole), for a whole that is seen to be there by the same
    pairs: Fieller's of 95 % where it is plain, wider where it is not, and unknown where it is weak.

    Of wholes that are large enough to be seen, those that chance made look larger are seen more
    often, and with them shares that are wrong: 95 % would cover 91 to 94 % of these. No interval
    with ends covers a share of what may be nothing (Gleser, Hwang 1987).
    """
    for of_whole, of_share in SEEN:
        if excludes_zero(mean_interval(whole, of_whole)):
            return ratio_interval(part, whole, of_share)
    return UNKNOWN


def share_text(share: float, low: float, high: float) -> str:
    """`80% [35%, 140%]`, or UNTOLD."""
    return UNTOLD if np.isnan(low) else f"{share:.0%}{ends_text(low, high, '.0%')}"


def held_out_gaps(sync: Values, arm: Values) -> Values:
    """For losses of shape (..., points, seeds), the gap at each seed of the settings that are best
    on the others, shape (..., seeds); infinite if the arm diverged there, if it diverged on the
    others at every setting, or if there are no others."""
    base = at_best_on_others(sync, sync)
    is_finite = np.isfinite(base)
    return np.where(is_finite, at_best_on_others(arm, arm) - np.where(is_finite, base, 0.0), np.inf)


def interval_of_best(
    same_seeds: Values, held_out: Values, confidence: float = CONFIDENCE
) -> tuple[Values, Values]:
    """Ends of the interval of the difference of two bests, from gaps of shape (..., n) at settings
    chosen on all seeds, and for each seed on the others.

    It encloses Student's t-intervals of both, the latter with the variance of `folds_share`.
    """
    of_same = mean_intervals(same_seeds, confidence)
    low, high = mean_intervals(held_out, confidence)
    middle, half = (low + high) / 2, np.sqrt(folds_share(held_out.shape[-1])) * (high - low) / 2
    return np.minimum(of_same[0], middle - half), np.maximum(of_same[1], middle + half)


def folds_share(n: int) -> float:
    """By how much the variance of a mean over n seeds exceeds s²/n, if each seed has the setting
    that is best on the others: (1/n + 1/(n - 1)) / (1/n) (Nadeau, Bengio 2003)."""
    return 1 + n / max(1, n - 1)


def at_best_on_others(losses: Values, values: Values) -> Values:
    """For each seed, the value at the point of the lowest mean loss on the other seeds.

    Both have the shape (..., points, seeds), the result (..., seeds); it is infinite where there is
    no such point.
    """
    diverged = np.isinf(losses)
    finite = np.where(diverged, 0.0, losses)
    sums_of_others = finite.sum(axis=-1, keepdims=True) - finite
    other_diverged = diverged.sum(axis=-1, keepdims=True) > diverged
    sums_of_others = np.where(other_diverged | (losses.shape[-1] < 2), np.inf, sums_of_others)
    best_index = sums_of_others.argmin(axis=-2)[..., None, :]
    best_values = np.take_along_axis(values, best_index, axis=-2)[..., 0, :]
    return np.where(np.isinf(sums_of_others.min(axis=-2)), np.inf, best_values)


def excludes_zero(interval: Interval) -> bool:
    """False for an unknown interval."""
    low, high = interval
    return low > 0 or high < 0


def shared_confidence(num_chances: int) -> float:
    """The confidence of each of so many intervals, of which none errs in 95 % (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / num_chances


@cache
def quantile(n: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the interval of a mean of n values, in standard errors; NaN for n < 2."""
    return float(stats.t.ppf((1 + confidence) / 2, n - 1))


def detectable_gap(sd: float, n: int) -> float:
    """The smallest true mean gap whose 95 % interval over `n` pairs excludes 0 with a probability
    of 80 % (noncentral t); infinite for n < 2."""
    return math.inf if n < 2 else detectable_shift(n - 1) * sd / math.sqrt(n)


@cache
def detectable_shift(freedom: float) -> float:
    """The smallest true mean that is detected with a probability of 80 %, in standard errors that
    are known with these degrees of freedom."""
    critical = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom))

    def excess(shift: float) -> float:
        """Power minus POWER, at a true mean of `shift` standard errors.

        Intervals below 0 are not counted: they have a chance of 1e-6 where the power is 80 %.
        """
        return float(stats.nct.sf(critical, freedom, shift)) - POWER

    return optimize.brentq(excess, 0, 4 * critical)


def seeds_needed(sd: float, half_width: float) -> int:
    """The smallest number of pairs, of standard deviation `sd`, whose 95 % interval is at most
    `half_width` (> 0) to each side of the mean."""
    n = max(2, math.ceil((stats.norm.ppf((1 + CONFIDENCE) / 2) * sd / half_width) ** 2))
    while quantile(n) * sd / math.sqrt(n) > half_width:
        n += 1
    return n
