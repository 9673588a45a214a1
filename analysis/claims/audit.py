"""The power audit of a verdict: simulated stores in which the claim is false, true, and not to be
decided, are judged by its own rule.

A simulated store has the rows, seeds and noise of the one in hand (`rules.rule`). The parts of a
claim are drawn independently of each other. Draws depend on nothing but the claim's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np

from analysis.claims.claim import Verdict, against
from analysis.claims.comparison import Comparison
from analysis.claims.rates import MOST_SEEDS, Audit, Rate
from analysis.claims.rules.rule import CONTRADICTED, REPRODUCED, Codes, Means
from analysis.statistics.power import POWER

ERRORS, SEARCH = 2_000, 400
"""Simulated stores for a rate of errors, and for each step of the search for seeds."""


def audited(verdict: Verdict) -> Verdict:
    """The verdict with its audit; without one if no part of it can be simulated."""
    parts = [one for one in verdict.comparisons if not one.flaw and np.isfinite(one.values).all()]
    if not parts:
        return verdict
    left_out = len(verdict.comparisons) - len(parts)
    seed = crc32(verdict.claim.name.encode())
    confidence = against(verdict.comparisons)
    return verdict._replace(audit=audit(parts, confidence, seed)._replace(num_left_out=left_out))


def audit(parts: Sequence[Comparison], confidence: float, seed: int, stores: int = ERRORS) -> Audit:
    """How often the rules of a claim's parts err; `confidence`: of a contradiction.

    A claim is just false in the hardest way if one part is just false and nothing is wrong with the
    others: the rate is the highest of all parts, and of all ways in which each can be false.
    """
    draws = _Stores(parts, confidence, seed)
    falsely = [
        _count(draws.of_part(index, means, stores), REPRODUCED)
        for index, one in enumerate(parts)
        for means in one.rule.just_false(_means(one))
    ]
    true = draws.of_claim(lambda one: one.rule.just_true(_means(one)), stores)
    placebo = draws.of_claim(lambda one: one.rule.placebo(_means(one)), stores)
    by_as_much = draws.of_claim(lambda one: one.rule.true(_means(one)), SEARCH)
    observed = draws.of_claim(_means, SEARCH)
    return Audit(
        Rate(max(falsely), stores),
        Rate(_count(true, CONTRADICTED), stores),
        Rate(int(np.count_nonzero(placebo)), stores),
        Rate(_count(by_as_much, REPRODUCED), SEARCH),
        Rate(int(np.count_nonzero(observed)), SEARCH),
        _seeds(lambda n: bool(np.mean(draws.of_claim(_means, SEARCH, n) != 0) >= POWER)),
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


class _Stores:
    """Codes of simulated stores."""

    def __init__(self, parts: Sequence[Comparison], confidence: float, seed: int) -> None:
        self.parts = parts
        self.confidence = confidence
        self.seed = seed

    def of_part(self, index: int, means: Means, stores: int, n: int | None = None) -> Codes:
        """Shape (stores,); `n` seeds, or as many as there are."""
        one = self.parts[index]
        rng = np.random.default_rng([self.seed, index])
        values = one.rule.draw(means, one.values, (stores, n or one.values.shape[1]), rng)
        return one.rule.decide(values, self.confidence)

    def of_claim(
        self, means: Callable[[Comparison], Means], stores: int, n: int | None = None
    ) -> Codes:
        """The same of all parts together."""
        codes = np.array(
            [self.of_part(i, means(one), stores, n) for i, one in enumerate(self.parts)]
        )
        reproduced = np.where((codes == REPRODUCED).all(axis=0), REPRODUCED, 0)
        return np.where((codes == CONTRADICTED).any(axis=0), CONTRADICTED, reproduced)


def _means(one: Comparison) -> Means:
    return one.values.mean(axis=1)


def _count(codes: Codes, code: int) -> int:
    return int(np.count_nonzero(codes == code))
