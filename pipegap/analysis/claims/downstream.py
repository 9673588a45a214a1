"""Claims about downstream tasks: that they see nothing of a delay whose errors are fed back."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.random import Generator

from pipegap.analysis.claims.claim import Claim
from pipegap.analysis.claims.measure import PAPER, words
from pipegap.analysis.claims.rule import (
    ClaimRule,
    Codes,
    Comparison,
    Estimate,
    Means,
    Row,
    codes_of,
)
from pipegap.analysis.statistics.downstream import (
    Noise,
    TaskScores,
    intervals,
    noise,
    safe_intervals,
    task_scores,
)
from pipegap.analysis.statistics.intervals import Values
from pipegap.analysis.table import names
from pipegap.analysis.table.answers import ACCURACY, BITS, CHANCE

ARM = "delay_ef"
MARGINS = {ACCURACY: 0.01, BITS: 0.01}
"""Differences that would not matter."""
ABOVE, DIFFERENCE = 0, 1
"""Rows: what sync scores above a guess, and the arm's score minus sync's, both means over the
questions, one value per seed."""


@dataclass(frozen=True)
class Equal(ClaimRule):
    """Reproduced where the difference is surely within the margin, contradicted where it is surely
    outside. Nothing is decided unless sync is surely better than a guess: guesses are all equal.

    `noises`: how uncertain the questions make each row, see `analysis.statistics.downstream`.
    """

    margin: float
    noises: tuple[Noise, Noise]

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether the difference lies within the margin, or outside of it."""
        low, high = self._interval(values, DIFFERENCE)
        refuting = safe_intervals(values[..., DIFFERENCE, :], self.noises[DIFFERENCE], confidence)
        is_known = self._interval(values, ABOVE)[0] > 0
        within = (low > -self.margin) & (high < self.margin)
        outside = (refuting[0] > self.margin) | (refuting[1] < -self.margin)
        return codes_of(within, outside, is_known)

    def why(self, values: Values) -> str:
        """That sync may guess, or that the difference may lie on either side of the margin."""
        if not self._interval(values, ABOVE)[0] > 0:
            return "sync may answer by chance: guesses are all equal"
        return f"the difference may be more or less than {self.margin:g}"

    def numbers(self, values: Values) -> list[Estimate]:
        """The difference, with its interval over seeds and questions."""
        low, high = self._interval(values, DIFFERENCE)
        mean = float(values[DIFFERENCE].mean())
        return [Estimate("difference", mean, float(low), float(high), values.shape[-1])]

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Seeds with their covariance, and questions drawn anew for each store, which are the same
        for its seeds: [..., stores, rows, seeds]."""
        stores, num_seeds = shape
        n = values.shape[1]
        residuals = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(n - 1)
        by_seed = residuals @ rng.standard_normal((stores, n, num_seeds))
        spread = np.sqrt([[noise.questions] for noise in self.noises])
        by_question = spread * rng.standard_normal((stores, len(spread), 1))
        return means[..., None, :, None] + by_seed + by_question

    def _interval(self, values: Values, row: int) -> tuple[Values, Values]:
        return intervals(values[..., row, :], self.noises[row])


def _equal(trials: pd.DataFrame, measure: str) -> Sequence[Comparison]:
    """One part per optimizer, point and task."""
    return [_part(scores, measure) for scores in task_scores(trials) if scores.arm == ARM]


def _part(scores: TaskScores, measure: str) -> Comparison:
    by_question = [_above_a_guess(scores, measure), scores.difference(measure)]
    rows = [
        Row(name, pd.Series(values.mean(axis=1), index=[*scores.seeds]), shown=False)
        for name, values in zip(("above a guess", "difference"), by_question, strict=True)
    ]
    above, difference = map(noise, by_question)
    return Comparison(
        words(names.optimizer(scores.optimizer), scores.task),
        rows,
        Equal(MARGINS[measure], (above, difference)),
        scores.optimizer in PAPER,
    )


def _above_a_guess(scores: TaskScores, measure: str) -> Values:
    """[seeds, questions]. What sees right answers in a guess is known without a guess."""
    sync = scores.sync
    return sync[ACCURACY] - sync[CHANCE] if measure == ACCURACY else sync[measure]


def _rule(measure: str, quantity: str, unless: str = "") -> str:
    return (
        f"For each optimizer of the paper and task: the 95 % interval over seeds and questions of "
        f"the difference in {quantity} lies within ±{MARGINS[measure]:g}; contradicted where it "
        f"lies outside of that altogether{unless}."
    )


CLAIMS = (
    Claim(
        "downstream",
        "With Error Feedback downstream accuracy is that of sync",
        "table 4 (10B MoE: MMLU 0.411 and 0.407, HellaSwag 0.670 and 0.673, PIQA 0.775 and 0.778)",
        ("main",),
        _rule(ACCURACY, "accuracy", "; undecided where sync may answer by chance"),
        partial(_equal, measure=ACCURACY),
    ),
    Claim(
        "downstream_bits",
        "With Error Feedback right answers of downstream tasks are as likely as after sync",
        "table 4 (10B MoE; accuracy only)",
        ("main",),
        _rule(BITS, "the bits per byte of right answers"),
        partial(_equal, measure=BITS),
    ),
)
