"""How many seeds are enough: the gap that n seeds detect, and the seeds that a precision needs.

Both assume Student's t-interval of paired gaps that are normally distributed with standard
deviation `sd`, which `spreads` estimates from a store.
"""

import math
import warnings
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from analysis.statistics.intervals import CONFIDENCE, quantile
from analysis.statistics.pairs import SAME_ARM, pairs
from analysis.table.load import load

POWER = 0.8
LEAST_FREEDOM = 2
"""Degrees of freedom of a standard deviation: with one, it may be thirty times too small."""


class Spread(NamedTuple):
    """Spread of an optimizer's paired gaps around the mean of their point and arm, pooled."""

    sd: float
    """Nats per token."""
    num_pairs: int
    num_means: int
    """How many points and arms have two pairs or more."""


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

    shift: float = optimize.brentq(excess, 0, 4 * critical)
    return shift


def seeds_needed(sd: float, half_width: float) -> int:
    """The smallest number of pairs, of standard deviation `sd`, whose 95 % interval is at most
    `half_width` (> 0) to each side of the mean."""
    n = max(2, math.ceil((stats.norm.ppf((1 + CONFIDENCE) / 2) * sd / half_width) ** 2))
    while quantile(n) * sd / math.sqrt(n) > half_width:
        n += 1
    return n


def spreads(results: Path, trial_ids: Collection[str]) -> dict[str, Spread]:
    """The spread of each optimizer in these trials of a store.

    An optimizer with fewer degrees of freedom than LEAST_FREEDOM is left out. Raises as `load` and
    `pairs` do; the report repeats their warnings, so they are silenced here.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        trials = load(results, trial_ids)
        if trials.empty:
            return {}
        paired = pairs(trials)
    groups = paired.groupby(SAME_ARM)["gap"].agg(["var", "count"])
    several = groups[groups["count"] > 1]
    return {
        str(optimizer): Spread(
            float(np.sqrt(np.average(own["var"], weights=own["count"] - 1))),
            int(own["count"].sum()),
            len(own),
        )
        for optimizer, own in several.groupby("optimizer")
        if (own["count"] - 1).sum() >= LEAST_FREEDOM
    }
