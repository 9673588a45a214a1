"""Intervals of a mean over seeds and questions, both of which are samples.

A score d[seed, question] = mean + seed's effect + question's effect + rest: two-way crossed random
effects, without repetitions. With the mean squares of an analysis of variance, the mean over S
seeds and Q questions has the variance (MS_seed + MS_question − MS_rest) / (S Q) (Searle, Casella
and McCulloch 1992, chapter 4); its degrees of freedom are Satterthwaite's (1946). To take all S Q
answers as independent is far too narrow: the seeds are asked the same questions, and answers of one
model go together.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from pipegap.analysis.statistics.intervals import CONFIDENCE, Values, detectable_shift

MOST_SEEDS = 1024
"""The most seeds that are tried."""


class Noise(NamedTuple):
    """What makes the mean over `num_questions` questions uncertain, besides the seeds' own spread.

    `questions`: the variance of that mean by which questions were drawn, shared by all seeds;
    `rest`: that of one seed's mean by the interplay of seed and question.
    """

    questions: float
    rest: float
    num_questions: int


def noise(scores: Values) -> Noise:
    """The noise of scores [seeds, questions]; one seed's is put down to the questions alone."""
    num_seeds, num_questions = scores.shape
    if num_questions < 2:
        return Noise(math.nan, math.nan, num_questions)
    by_question = scores.mean(axis=0)
    if num_seeds == 1:
        return Noise(float(by_question.var(ddof=1)) / num_questions, 0.0, num_questions)
    rest = scores - scores.mean(axis=1, keepdims=True) - by_question + scores.mean()
    of_rest = float((rest**2).sum()) / (num_seeds - 1) / (num_questions - 1)
    of_questions = max(float(by_question.var(ddof=1)) - of_rest / num_seeds, 0.0)
    return Noise(of_questions / num_questions, of_rest / num_questions, num_questions)


def intervals(by_seed: Values, noise: Noise) -> tuple[Values, Values]:
    """Lower and upper ends for the mean of each seed, [..., seeds].

    Of one seed the interval is over questions alone: it is of that trained model, not of the arm.
    NaN where nothing varies, which tells nothing of what might.
    """
    variance, freedom = _variance(by_seed, noise)
    with np.errstate(invalid="ignore"):
        half = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
    half = np.where(variance > 0, half, np.nan)
    mean = by_seed.mean(axis=-1)
    return mean - half, mean + half


def safe_intervals(by_seed: Values, noise: Noise, confidence: float) -> tuple[Values, Values]:
    """Wider `intervals`, for two seeds or more: each part of the variance has its own quantile.

    At confidences far above 95 % Satterthwaite's degrees of freedom are too many if the spread of
    few seeds is small by chance.
    """
    num_seeds, tail = by_seed.shape[-1], (1 + confidence) / 2
    of_seeds = np.maximum(by_seed.var(axis=-1, ddof=1), noise.rest) / num_seeds
    quantiles = stats.t.ppf(tail, [num_seeds - 1, noise.num_questions - 1])
    half = np.sqrt(quantiles[0] ** 2 * of_seeds + quantiles[1] ** 2 * noise.questions)
    mean = by_seed.mean(axis=-1)
    return mean - half, mean + half


def crossed_interval(scores: Values) -> tuple[float, float]:
    """The interval of the mean of scores [seeds, questions]."""
    low, high = intervals(scores.mean(axis=1), noise(scores))
    return float(low), float(high)


def _variance(by_seed: Values, noise: Noise) -> tuple[Values, Values]:
    """The variance of the mean, and its degrees of freedom; shapes [...]."""
    num_seeds = by_seed.shape[-1]
    if num_seeds == 1:
        whole = np.full(by_seed.shape[:-1], noise.questions)
        return whole, np.full(by_seed.shape[:-1], noise.num_questions - 1.0)
    return _of_spread(by_seed.var(axis=-1, ddof=1), num_seeds, noise)


def _of_spread(spread: Values, num_seeds: int | Values, noise: Noise) -> tuple[Values, Values]:
    """Variance of the mean, and its degrees of freedom, if the seeds' means have the variance
    `spread`."""
    of_seeds, of_rest = spread / num_seeds, noise.rest / num_seeds
    of_questions = noise.questions + of_rest
    # At least what the questions alone would say: the spread of few seeds may be small by chance.
    variance = np.maximum(of_seeds + noise.questions, of_questions)
    seeds, questions = num_seeds - 1, noise.num_questions - 1
    parts = of_seeds**2 / seeds + of_questions**2 / questions + of_rest**2 / (seeds * questions)
    with np.errstate(invalid="ignore", divide="ignore"):
        return variance, variance**2 / parts


def detectable_difference(scores: Values) -> float:
    """The smallest true mean whose 95 % interval over as many seeds and questions excludes 0 with a
    probability of 80 %; infinite for fewer than two seeds, NaN where nothing varies."""
    if (n := len(scores)) < 2:
        return math.inf
    variance, freedom = _of_spread(scores.mean(axis=1).var(ddof=1), n, noise(scores))
    return detectable_shift(float(freedom)) * math.sqrt(variance) if variance > 0 else math.nan


def seeds_needed(scores: Values, half_width: float) -> int | None:
    """The fewest seeds whose 95 % interval is at most `half_width` to each side of the mean.

    None if MOST_SEEDS are not enough: then there are too few questions, or one seed alone.
    """
    if len(scores) < 2:
        return None
    spread = scores.mean(axis=1).var(ddof=1)
    n = np.arange(2.0, MOST_SEEDS + 1)
    variance, freedom = _of_spread(spread, n, noise(scores))
    halves = stats.t.ppf((1 + CONFIDENCE) / 2, freedom) * np.sqrt(variance)
    enough = n[halves <= half_width]
    return int(enough[0]) if len(enough) else None
