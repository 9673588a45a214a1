"""Means of paired differences with 95 % intervals, and ratios of such means."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.float64]
CONFIDENCE = 0.95
BOOTSTRAP_FROM = 20
"""Below so many pairs a bootstrap is too narrow (3 seeds cover 75 %): Student's t instead."""


class Interval(NamedTuple):
    """An estimate and its 95 % interval; NaN where the data do not give one."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of 0 (False where there is none)."""
        return self.low > 0 or self.high < 0


def mean_interval(values: Values, generator: np.random.Generator) -> Interval:
    """Of the mean of independent values: Student's t, bootstrap from 20 values on."""
    mean = float(np.mean(values)) if len(values) else math.nan
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    if len(values) < BOOTSTRAP_FROM:
        half = _t(len(values)) * float(stats.sem(values))
        return Interval(mean, mean - half, mean + half)
    result = stats.bootstrap((values,), np.mean, confidence_level=CONFIDENCE, rng=generator)
    return Interval(mean, *map(float, result.confidence_interval))


def share_removed(left: Values, whole: Values) -> Interval:
    """1 − mean(left) / mean(whole) over the same pairs, with Fieller's interval (1954).

    NaN where the mean of `whole` is not clearly apart from 0: a share of nothing says nothing.
    """
    ratio = float(np.mean(left) / np.mean(whole)) if len(whole) else math.nan
    nothing = Interval(math.nan, math.nan, math.nan)
    if len(whole) < 2:
        return nothing
    covariance = np.cov(left, whole) / len(whole)
    t2 = _t(len(whole)) ** 2
    a = np.mean(whole) ** 2 - t2 * covariance[1, 1]
    b = np.mean(left) * np.mean(whole) - t2 * covariance[0, 1]
    c = np.mean(left) ** 2 - t2 * covariance[0, 0]
    if a <= 0:
        return nothing
    spread = math.sqrt(max(0.0, b * b - a * c))
    return Interval(1 - ratio, float(1 - (b + spread) / a), float(1 - (b - spread) / a))


def _t(n: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
