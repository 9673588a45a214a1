"""What a rule is: a function of numbers that are paired by seed.

Values have the shape (..., rows, seeds), so that a rule judges one store or thousands of simulated
ones by the same lines. Each rule also says at which means a claim is just false, just true, or not
to be decided: the audit simulates stores there.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from analysis.statistics.intervals import Values, mean_intervals

SAME = 0.2
"""A difference is small if it is surely below this share of the gap of the plain delay."""
REPRODUCED, CONTRADICTED = 1, -1
Codes = NDArray[np.int8]
"""REPRODUCED, CONTRADICTED, or 0: undecided."""
Mask = NDArray[np.bool_]
"""Shape (...)."""
Number = tuple[str, float, float, float, int]
"""Name, mean, ends of the 95 % interval, seeds."""
Means = NDArray[np.float64]
"""Shape (rows,)."""


class Rule(Protocol):
    """How values become a verdict."""

    @property
    def num_refuting(self) -> int:
        """How many comparisons could contradict the claim."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """Codes of shape (...); `confidence`: of the intervals that may contradict."""

    def why(self, values: Values) -> str:
        """Why values of shape (rows, seeds) are undecided."""

    def numbers(self, values: Values) -> list[Number]:
        """The paired numbers that decide."""

    def just_false(self, means: Means) -> list[Means]:
        """Means at which the claim is false by nothing, each the hardest in its way."""

    def just_true(self, means: Means) -> Means:
        """Means at which it is true by nothing."""

    def placebo(self, means: Means) -> Means:
        """Means at which nothing is there to be found."""

    def true(self, means: Means) -> Means:
        """Means at which it is true by as much as was observed, whichever way round that was."""

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Values of (stores, seeds) simulated stores, with the noise of `values`: for means of the
        shape (..., rows) that of (..., stores, rows, seeds), all of them with the same draws."""


class Normal:
    """Rows of losses: normal, with the covariance of the rows over the seeds of a store.

    That covariance has the paired standard deviation of every comparison of the rows.
    """

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """As in `Rule`."""
        stores, num_seeds = shape
        n = values.shape[1]
        residuals = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(n - 1)
        factor = np.linalg.qr(residuals.T).R.T  # of the covariance, and no wider than it
        noise = rng.standard_normal((stores, factor.shape[1], num_seeds))
        return means[..., None, :, None] + factor @ noise


def number(name: str, values: Values) -> Number:
    """The mean of one value per seed."""
    low, high = mean_intervals(values)
    return name, float(values.mean()), float(low), float(high), len(values)


def codes_of(found: Mask, refuted: Mask, known: Mask | bool = True) -> Codes:
    """CONTRADICTED where refuted, else REPRODUCED where found; undecided where not known."""
    codes = np.where(refuted, CONTRADICTED, np.where(found, REPRODUCED, 0))
    return np.where(known, codes, 0).astype(np.int8)
