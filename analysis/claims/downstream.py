"""Claims about downstream tasks: that they see nothing of a delay whose errors are fed back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd

from analysis.claims.claim import Claim
from analysis.claims.comparison import Comparison, Row
from analysis.claims.measure import PAPER, words
from analysis.claims.rules.equal import Equal
from analysis.statistics.crossed import noise
from analysis.statistics.downstream import Asked, asked
from analysis.statistics.intervals import Values
from analysis.table import names
from analysis.table.answers import ACCURACY, BITS, CHANCE

ARM = "delay_ef"
MARGINS = {ACCURACY: 0.01, BITS: 0.01}
"""Differences that would not matter."""


def _equal(trials: pd.DataFrame, measure: str) -> Sequence[Comparison]:
    """One part per optimizer, point and task."""
    return [_part(one, measure) for one in asked(trials) if one.arm == ARM]


def _part(one: Asked, measure: str) -> Comparison:
    scores = [_above_a_guess(one, measure), one.difference(measure)]
    rows = [
        Row(name, pd.Series(of_question.mean(axis=1), index=[*one.seeds]), shown=False)
        for name, of_question in zip(("above a guess", "difference"), scores, strict=True)
    ]
    above, difference = map(noise, scores)
    return Comparison(
        words(names.optimizer(one.optimizer), one.task),
        rows,
        Equal(MARGINS[measure], (above, difference)),
        one.optimizer in PAPER,
    )


def _above_a_guess(one: Asked, measure: str) -> Values:
    """[seeds, questions]. What sees right answers in a guess is known without a guess."""
    return one.sync[ACCURACY] - one.sync[CHANCE] if measure == ACCURACY else one.sync[measure]


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
