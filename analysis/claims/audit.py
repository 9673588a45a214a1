"""The audit of a verdict: its own rule judges simulated stores in which there is nothing to decide,
and stores with the means that were observed.

A simulated store has the rows, seeds and noise of the one in hand (`claims.rule`). The parts of a
claim are drawn independently of each other. Draws depend on nothing but the seed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from pipegap.analysis.claims.rule import CONTRADICTED, REPRODUCED, Codes, Comparison, Means
from pipegap.analysis.statistics.intervals import CONFIDENCE, POWER, Interval

ERRORS, SEARCH = 2_000, 400
"""Simulated stores for a rate of errors, and for each step of the search for seeds."""
MOST_SEEDS = 128
"""The most seeds that are tried."""


class Rate(NamedTuple):
    """So many of so many simulated stores."""

    num: int
    total: int

    @property
    def share(self) -> float:
        """The number over the total."""
        return self.num / self.total

    @property
    def interval(self) -> Interval:
        """The exact 95 % interval of the share (Clopper, Pearson)."""
        ends = stats.binomtest(self.num, self.total).proportion_ci(CONFIDENCE)
        return float(ends.low), float(ends.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


class Audit(NamedTuple):
    """What a claim's rule says of simulated stores with the arms, seeds and noise of one store."""

    decided_if_placebo: Rate
    """There is no effect, and so nothing to decide."""
    decided: Rate
    """Decided, at the means that were observed."""
    seeds: int | None
    """Seeds that decide with a probability of POWER at these means; None: more than
    MOST_SEEDS."""
    num_left_out: int = 0
    """Parts that cannot be simulated: without two seeds, or where trials diverged."""


def audit(parts: Sequence[Comparison], confidence: float, seed: int, stores: int = ERRORS) -> Audit:
    """How often the rules of a claim's parts decide; `confidence`: of a contradiction."""

    def of_claim(means: Sequence[Means], num_stores: int, num_seeds: int | None = None) -> Rate:
        """The decided ones of so many stores, at these means of each part; by default with as many
        seeds as there are."""
        codes = []
        for index, (part, of_part) in enumerate(zip(parts, means, strict=True)):
            shape = num_stores, num_seeds or part.values.shape[1]
            rng = np.random.default_rng([seed, index])
            values = part.rule.draw(of_part[None], part.values, shape, rng)
            codes.append(part.rule.decide(values, confidence)[0])
        return Rate(int(np.count_nonzero(_together(codes))), num_stores)

    observed = [part.values.mean(axis=1) for part in parts]
    placebo = [part.rule.placebo(means) for part, means in zip(parts, observed, strict=True)]
    return Audit(
        of_claim(placebo, stores),
        of_claim(observed, SEARCH),
        _seeds(lambda num_seeds: of_claim(observed, SEARCH, num_seeds).share >= POWER),
    )


def _seeds(decides: Callable[[int], bool]) -> int | None:
    """The fewest seeds that decide: doubled until they do, then bisected."""
    high = 2
    while not decides(high):
        if high >= MOST_SEEDS:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _together(of_parts: Sequence[Codes]) -> Codes:
    """Codes of a claim from those of its parts, each of shape (stores,)."""
    codes = np.array(of_parts)
    reproduced = np.where((codes == REPRODUCED).all(axis=0), REPRODUCED, 0)
    return np.where((codes == CONTRADICTED).any(axis=0), CONTRADICTED, reproduced)
