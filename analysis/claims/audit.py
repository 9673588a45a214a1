"""The power audit of a verdict: simulated stores in which the claim is false, true, and not to be
decided, are judged by its own rule.

A simulated store has the rows, seeds and noise of the one in hand (`claims.rule`). The parts of a
claim are drawn independently of each other. Draws depend on nothing but the claim's name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np

from analysis.claims.claim import Verdict, against
from analysis.claims.comparison import Comparison
from analysis.claims.rates import MOST_SEEDS, Audit, Rate
from analysis.claims.rule import CONTRADICTED, REPRODUCED, Codes, Means
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
    errors = [draws.of_part(index, _erring(one), stores) for index, one in enumerate(parts)]
    falsely = max(_count(codes, REPRODUCED) for of_part in errors for codes in of_part[2:])
    true, placebo = _together([of_part[:2] for of_part in errors])
    by_as_much, observed = draws.of_claim(lambda one: [one.rule.true(_means(one)), _means(one)])

    def decides(n: int) -> bool:
        [codes] = draws.of_claim(lambda one: [_means(one)], n)
        return bool(np.mean(codes != 0) >= POWER)

    return Audit(
        Rate(falsely, stores),
        Rate(_count(true, CONTRADICTED), stores),
        Rate(int(np.count_nonzero(placebo)), stores),
        Rate(_count(by_as_much, REPRODUCED), SEARCH),
        Rate(int(np.count_nonzero(observed)), SEARCH),
        _seeds(decides),
    )


def _erring(one: Comparison) -> list[Means]:
    """Where rules err: a claim that is just true, a placebo, and each way of being just false."""
    rule, means = one.rule, _means(one)
    return [rule.just_true(means), rule.placebo(means), *rule.just_false(means)]


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

    def of_part(
        self, index: int, means: Sequence[Means], stores: int, n: int | None = None
    ) -> Codes:
        """Shape (means, stores), all means with the same draws; `n` seeds, or as many as there
        are."""
        one = self.parts[index]
        rng = np.random.default_rng([self.seed, index])
        shape = stores, n or one.values.shape[1]
        values = one.rule.draw(np.array(means), one.values, shape, rng)
        return one.rule.decide(values, self.confidence)

    def of_claim(
        self, means: Callable[[Comparison], Sequence[Means]], n: int | None = None
    ) -> Codes:
        """The same of all parts together, in SEARCH stores."""
        parts = enumerate(self.parts)
        return _together([self.of_part(index, means(one), SEARCH, n) for index, one in parts])


def _together(of_parts: Sequence[Codes]) -> Codes:
    """Codes of a claim from those of its parts, each of shape (means, stores)."""
    codes = np.array(of_parts)
    reproduced = np.where((codes == REPRODUCED).all(axis=0), REPRODUCED, 0)
    return np.where((codes == CONTRADICTED).any(axis=0), CONTRADICTED, reproduced)


def _means(one: Comparison) -> Means:
    return one.values.mean(axis=1)


def _count(codes: Codes, code: int) -> int:
    return int(np.count_nonzero(codes == code))
