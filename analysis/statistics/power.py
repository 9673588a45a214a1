"""What a number of seeds can show: the smallest gap it detects, and the seeds a precision needs.

Both are of Student's t-interval of paired gaps that are normally distributed with standard
deviation `sd`; `spreads` is what a store says of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from analysis.intervals import CONFIDENCE, quantile
from analysis.pairs import VARIANT, pairs
from analysis.store import load

POWER = 0.8
LEAST_FREEDOM = 2
"""Degrees of freedom of a standard deviation: of one it may be thirty times too small."""


class Spread(NamedTuple):
    """Of an optimizer's paired gaps around the mean of their point and arm, pooled over these."""

    sd: float
    """Nats per token."""
    num_pairs: int
    num_means: int
    """Points and arms with two pairs or more."""


def detectable_gap(sd: float, n: int) -> float:
    """The smallest true mean gap of which the 95 % interval over `n` pairs excludes 0 with 80 %
    power (noncentral t); infinite for n < 2."""
    if n < 2:
        return math.inf
    critical = quantile(n)

    def excess(shift: float) -> float:
        """Power beyond the wanted one, at a true mean of `shift` standard errors.

        An interval below 0 is left out: it has a chance of 1e-6 where the power is 80 %.
        """
        return float(stats.nct.sf(critical, n - 1, shift)) - POWER

    shift: float = optimize.brentq(excess, 0, 4 * critical)
    return shift * sd / math.sqrt(n)


def seeds_needed(sd: float, half_width: float) -> int:
    """The smallest n of which the 95 % interval is at most `half_width` (> 0) to each side, where
    the pairs have the standard deviation `sd`."""
    n = max(2, math.ceil((stats.norm.ppf((1 + CONFIDENCE) / 2) * sd / half_width) ** 2))
    while quantile(n) * sd / math.sqrt(n) > half_width:
        n += 1
    return n


def spreads(results: Path, trial_ids: Collection[str]) -> dict[str, Spread]:
    """By optimizer, of these trials of a store; one with fewer than LEAST_FREEDOM is left out.

    Raises as `load` and `pairs` do; what they warn of is left to the report.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trials = load(results, trial_ids)
        if trials.empty:
            return {}
        found = pairs(trials)
    groups = found.groupby(["optimizer", "arm", "point", *VARIANT])["gap"].agg(["var", "count"])
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
