"""Intervals over seeds and questions cover the mean as often as they say."""

import math
from itertools import product

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from pipegap.analysis.statistics.downstream import (
    crossed_interval,
    detectable_difference,
    intervals,
    noise,
    seeds_needed,
)

STORES = 600
Spread = tuple[float, float, float]
"""Standard deviations of the effects of seeds and questions, and of the rest."""
CASES: dict[tuple[int, int], Spread] = {
    (3, 500): (0.01, 0.2, 0.3),
    (3, 800): (0.0, 0.1, 0.3),
    (3, 100): (0.02, 0.3, 0.3),
    (5, 400): (0.02, 0.1, 0.4),
    (8, 200): (0.05, 0.0, 0.4),
    (2, 300): (0.01, 0.2, 0.3),
}


def drawn(shape: tuple[int, int], spread: Spread, rng: Generator) -> NDArray[np.float64]:
    seeds, questions = shape
    of_seed, of_question, rest = spread
    effects = rng.normal(0, of_seed, (seeds, 1)) + rng.normal(0, of_question, (1, questions))
    return effects + rng.normal(0, rest, shape)


@pytest.mark.parametrize(("shape", "spread"), CASES.items())
def test_the_interval_covers_the_mean_in_95_percent(shape: tuple[int, int], spread: Spread) -> None:
    """Where questions matter little it is a little too wide. All answers as independent: far too
    narrow where seeds differ."""
    rng = np.random.default_rng(shape)
    ends = np.array([crossed_interval(drawn(shape, spread, rng)) for _ in range(STORES)])
    covered = np.mean((ends[:, 0] <= 0) & (ends[:, 1] >= 0))
    assert 0.925 <= covered <= 0.99


def test_it_is_the_textbook_s_by_loops() -> None:
    """Mean squares of a two-way layout, and Satterthwaite's degrees of freedom, entry by entry."""
    scores = drawn((4, 30), (0.3, 0.4, 0.5), np.random.default_rng(1))
    seeds, questions = map(range, scores.shape)
    mean = sum(scores[s, q] for s, q in product(seeds, questions)) / 120
    rows = [sum(scores[s, q] for q in questions) / 30 for s in seeds]
    columns = [sum(scores[s, q] for s in seeds) / 4 for q in questions]
    of_seeds = 30 * sum((row - mean) ** 2 for row in rows) / 3
    of_questions = 4 * sum((column - mean) ** 2 for column in columns) / 29
    rest = sum(
        (scores[s, q] - rows[s] - columns[q] + mean) ** 2 for s, q in product(seeds, questions)
    ) / (3 * 29)
    variance = (of_seeds + of_questions - rest) / 120
    parts = of_seeds**2 / 3 + of_questions**2 / 29 + rest**2 / (3 * 29)
    freedom = (of_seeds + of_questions - rest) ** 2 / parts
    half = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    assert crossed_interval(scores) == pytest.approx((mean - half, mean + half))


def test_one_seed_is_an_interval_over_its_questions() -> None:
    scores = drawn((1, 50), (0.3, 0.4, 0.5), np.random.default_rng(2))
    low, high = stats.t.interval(0.95, 49, scores.mean(), stats.sem(scores[0]))
    assert crossed_interval(scores) == pytest.approx((low, high))


def test_scores_that_do_not_differ_tell_nothing() -> None:
    assert np.isnan(crossed_interval(np.zeros((3, 10)))).all()
    assert np.isnan(crossed_interval(np.zeros((1, 10)))).all()
    assert math.isnan(detectable_difference(np.zeros((3, 10))))


def test_the_difference_that_is_detected_is_so_in_80_percent() -> None:
    shape, spread = (4, 300), (0.02, 0.2, 0.3)
    rng = np.random.default_rng(3)
    known = np.mean([detectable_difference(drawn(shape, spread, rng)) for _ in range(200)])
    detected = [crossed_interval(drawn(shape, spread, rng) + known)[0] > 0 for _ in range(STORES)]
    assert 0.72 <= np.mean(detected) <= 0.92
    assert detectable_difference(drawn((1, 300), spread, rng)) == math.inf


def test_seeds_that_are_needed() -> None:
    scores = drawn((4, 1000), (0.02, 0.05, 0.3), np.random.default_rng(4))
    needed = seeds_needed(scores, 0.012)
    assert needed is not None
    halves = []
    for n in (needed - 1, needed):  # seeds whose means have the spread of those in hand
        by_seed = stats.zscore(np.arange(n, dtype=float), ddof=1) * scores.mean(axis=1).std(ddof=1)
        low, high = intervals(by_seed, noise(scores))
        halves.append(float(high - low) / 2)
    assert halves[0] > 0.012 >= halves[1]
    assert seeds_needed(scores, 1e-4) is None, "so many questions do not tell as much"
    assert seeds_needed(scores[:1], 0.1) is None
