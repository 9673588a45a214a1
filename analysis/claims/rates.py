"""How often a rule errs: numbers of an audit."""

from __future__ import annotations

from typing import NamedTuple

from scipy import stats

from analysis.statistics.intervals import CONFIDENCE, Interval

MOST_SEEDS = 128
"""The most seeds that are tried."""


class Rate(NamedTuple):
    """So many of so many simulated stores."""

    found: int
    total: int

    @property
    def share(self) -> float:
        """Found by total."""
        return self.found / self.total

    @property
    def interval(self) -> Interval:
        """Its exact 95 % interval (Clopper, Pearson)."""
        found = stats.binomtest(self.found, self.total).proportion_ci(CONFIDENCE)
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.1%} [{low:.1%}, {high:.1%}]"


class Audit(NamedTuple):
    """What a claim's rule says of simulated stores with the arms, seeds and noise of one store."""

    reproduced_if_false: Rate
    """The claim is just false: at the margin of its rule."""
    contradicted_if_true: Rate
    """It is just true."""
    decided_if_placebo: Rate
    """There is nothing to be found either way."""
    power: Rate
    """Reproduced, if it is true by as much as was observed."""
    decided: Rate
    """Decided, at the means that were observed."""
    seeds: int | None
    """Seeds that decide with a probability of POWER at these means; None: more than
    MOST_SEEDS."""
    num_left_out: int = 0
    """Parts that cannot be simulated: without two seeds, or where trials diverged."""
