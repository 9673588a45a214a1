"""Trials that diverge, counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy import stats

from analysis.claims.rule import Codes, Means, Number, codes_of
from analysis.statistics.intervals import CONFIDENCE, Values

HALF = 0.5


@dataclass(frozen=True)
class Diverges:
    """Reproduced where more than half of the trials surely diverge, contradicted where fewer do, by
    exact binomial tests of all rows together. Rows: 1 where a trial diverged, else 0."""

    num_refuting: int = 1

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        total, count = values.shape[-2] * values.shape[-1], values.sum(axis=(-2, -1))
        found = stats.binom.sf(count - 1, total, HALF) <= (1 - CONFIDENCE) / 2
        refuted = stats.binom.cdf(count, total, HALF) <= (1 - confidence) / 2
        return codes_of(found, refuted)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        return f"{values.sum():.0f} of {values.size} diverged: too few, or about half"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        return []

    def just_false(self, means: Means) -> list[Means]:
        """Half of them."""
        return [np.full_like(means, HALF)]

    def just_true(self, means: Means) -> Means:
        """Likewise."""
        return np.full_like(means, HALF)

    def placebo(self, means: Means) -> Means:
        """Likewise."""
        return np.full_like(means, HALF)

    def true(self, means: Means) -> Means:
        """All of them."""
        return np.ones_like(means)

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Trials that diverge or not, each by itself."""
        stores, num_seeds = shape
        uniform = rng.random((stores, means.shape[-1], num_seeds))
        return (uniform < means[..., None, :, None]).astype(float)
