"""The power audit of a verdict: simulated stores in which the claim is false, true, and not to be
decided, are judged by its own rule.

A simulated store has the rows, seeds and noise of the one in hand (`claims.rule`). The parts of a
claim are drawn independently of each other. Draws depend on nothing but the seed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from analysis.claims.rule import CONTRADICTED, REPRODUCED, Codes, Comparison, Means
from analysis.statistics.intervals import CONFIDENCE, POWER, Interval

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

    reproduced_if_false: Rate
    """The claim is just false: at the margin of its rule."""
    contradicted_if_true: Rate
    """The claim is just true."""
    decided_if_placebo: Rate
    """There is no effect, and so nothing to decide."""
    power: Rate
    """Reproduced, if the claim is true by as much as was observed."""
    decided: Rate
    """Decided, at the means that were observed."""
    seeds: int | None
    """Seeds that decide with a probability of POWER at these means; None: more than
    MOST_SEEDS."""
    num_left_out: int = 0
    """Parts that cannot be simulated: without two seeds, or where trials diverged."""


def audit(parts: Sequence[Comparison], confidence: float, seed: int, stores: int = ERRORS) -> Audit:
    """How often the rules of a claim's parts err; `confidence`: of a contradiction.

    The rate for a claim that is just false is the highest over all parts and all ways in which each
    part can be false: one part is just false, and nothing is wrong with the others.
    """

    def of_part(
        index: int, means: Sequence[Means], num_stores: int, num_seeds: int | None = None
    ) -> Codes:
        """Shape (means, stores), all means with the same draws; by default as many seeds as there
        are."""
        part = parts[index]
        shape = num_stores, num_seeds or part.values.shape[1]
        rng = np.random.default_rng([seed, index])
        values = part.rule.draw(np.array(means), part.values, shape, rng)
        return part.rule.decide(values, confidence)

    def of_claim(means: Sequence[Sequence[Means]], num_seeds: int | None = None) -> Codes:
        """Codes of the claim in SEARCH stores, from the means of each part: (means, stores)."""
        each = enumerate(means)
        return _together([of_part(index, of_each, SEARCH, num_seeds) for index, of_each in each])

    observed = [part.values.mean(axis=1) for part in parts]
    at = [part.rule.means_at(means) for part, means in zip(parts, observed, strict=True)]
    errors = [
        of_part(index, [each.just_true, each.placebo, *each.just_false], stores)
        for index, each in enumerate(at)
    ]
    falsely = max(_count(codes, REPRODUCED) for codes_of in errors for codes in codes_of[2:])
    true, placebo = _together([of_each[:2] for of_each in errors])
    as_much, as_seen = of_claim(
        [[each.true, means] for each, means in zip(at, observed, strict=True)]
    )

    def decides(num_seeds: int) -> bool:
        [codes] = of_claim([[means] for means in observed], num_seeds)
        return bool(np.mean(codes != 0) >= POWER)

    return Audit(
        Rate(falsely, stores),
        Rate(_count(true, CONTRADICTED), stores),
        Rate(int(np.count_nonzero(placebo)), stores),
        Rate(_count(as_much, REPRODUCED), SEARCH),
        Rate(int(np.count_nonzero(as_seen)), SEARCH),
        _seeds(decides),
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
    """Codes of a claim from those of its parts, each of shape (means, stores)."""
    codes = np.array(of_parts)
    reproduced = np.where((codes == REPRODUCED).all(axis=0), REPRODUCED, 0)
    return np.where((codes == CONTRADICTED).any(axis=0), CONTRADICTED, reproduced)


def _count(codes: Codes, code: int) -> int:
    return int(np.count_nonzero(codes == code))
