"""Equality within a margin, of scores over seeds and questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from analysis.claims.rule import Codes, Means, Number, codes_of
from analysis.statistics.crossed import Noise, intervals, safe_intervals
from analysis.statistics.intervals import Values

ABOVE, DIFFERENCE = 0, 1
"""Rows: what sync scores above a guess, and the arm's score minus sync's, both means over the
questions, one value per seed."""


@dataclass(frozen=True)
class Equal:
    """Reproduced where the difference is surely within the margin, contradicted where it is surely
    outside. Nothing is decided unless sync is surely better than a guess: guesses are all equal.

    `noises`: how uncertain the questions make each row, see `analysis.statistics.crossed`.
    """

    margin: float
    noises: tuple[Noise, Noise]
    num_refuting: int = 1

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        low, high = self._interval(values, DIFFERENCE)
        refuting = safe_intervals(values[..., DIFFERENCE, :], self.noises[DIFFERENCE], confidence)
        known = self._interval(values, ABOVE)[0] > 0
        within = (low > -self.margin) & (high < self.margin)
        outside = (refuting[0] > self.margin) | (refuting[1] < -self.margin)
        return codes_of(within, outside, known)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        if not self._interval(values, ABOVE)[0] > 0:
            return "sync may answer by chance: guesses are all equal"
        return f"the difference may be more or less than {self.margin:g}"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        low, high = self._interval(values, DIFFERENCE)
        mean = float(values[DIFFERENCE].mean())
        return [("difference", mean, float(low), float(high), values.shape[-1])]

    def just_false(self, means: Means) -> list[Means]:
        """A difference of the margin, up or down."""
        return [np.array([means[ABOVE], sign * self.margin]) for sign in (1, -1)]

    def just_true(self, means: Means) -> Means:
        """As large as in `just_false`, where it is both by nothing."""
        return np.array([means[ABOVE], self.margin])

    def placebo(self, means: Means) -> Means:
        """All guess."""
        return np.zeros_like(means)

    def true(self, means: Means) -> Means:
        """No difference."""
        return np.array([means[ABOVE], 0.0])

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """As in `Rule`: seeds with their covariance, as of any losses; and questions drawn anew for
        each store, which are the same for its seeds."""
        stores, num_seeds = shape
        n = values.shape[1]
        residuals = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(n - 1)
        of_seeds = residuals @ rng.standard_normal((stores, n, num_seeds))
        spread = np.sqrt([[noise.questions] for noise in self.noises])
        of_questions = spread * rng.standard_normal((stores, len(spread), 1))
        return means[..., None, :, None] + of_seeds + of_questions

    def _interval(self, values: Values, row: int) -> tuple[Values, Values]:
        return intervals(values[..., row, :], self.noises[row])
