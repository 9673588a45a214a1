"""The fits against scipy's, the law's own numbers, and intervals that hold what they claim."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.stats import binom

from analysis.forecast.forecast import Forecaster
from analysis.forecast.ladder import Ladder
from analysis.forecast.laws import FORMS, TaxLaw
from analysis.statistics.intervals import CONFIDENCE
from tests.support.simulated_ladders import LENGTHS, SIZE, Truth, ladder

UPDATES, BATCH = 12_800, 128
TARGET = np.array([[UPDATES, BATCH, SIZE]], dtype=float)
FLOORS = (0.0, 0.03, 0.1)
CHANCE = 1e-3
"""Of a coverage that is right to fail."""


@pytest.mark.parametrize("form", FORMS)
def test_a_fit_is_that_of_scipy(form: str) -> None:
    """The same sum of squares, written anew, at the same place and not above."""
    random = np.random.default_rng(0)
    settings = ladder(Truth(), random).settings
    updates, batch, _ = (np.log(settings) - np.log(settings).mean(axis=0)).T
    slopes = random.uniform(0.1, 0.3, len(settings))
    excess = 0.1 * np.exp(-0.8 * updates + 0.3 * batch) + 0.05
    gaps = slopes * np.log1p(excess) + 0.001 * random.standard_normal(len(settings))
    weights = random.uniform(1e4, 1e5, len(settings))
    law = TaxLaw(settings, FORMS[form])

    def errors(at: np.ndarray) -> np.ndarray:
        floor = np.exp(at[3]) if FORMS[form] else 0.0
        tax = 1 + np.exp(at[0] - at[1] * updates + at[2] * batch) + floor
        return np.asarray(np.sqrt(weights) * (gaps - slopes * np.log(tax)))

    own = law.fit(gaps[None], weights[None], slopes[None])[0]
    start = np.array([-2.0, 0.5, 0.0, -3.0])[: law.num_parameters]
    best = least_squares(errors, start, xtol=1e-14, ftol=1e-14)
    np.testing.assert_allclose(own, best.x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("floor", FLOORS)
def test_without_noise_the_law_is_found(floor: float) -> None:
    truth = Truth(floor=floor)
    forecaster = Forecaster(ladder(truth, np.random.default_rng(0), sd=1e-7), draws=50)
    [point] = forecaster.at(TARGET, 3)
    assert point.gap == pytest.approx(truth.gap(UPDATES, BATCH), rel=1e-3)
    assert point.tax - 1 == pytest.approx(truth.tax(UPDATES, BATCH) - 1, rel=1e-3)
    exponents = {form.form: form.exponents for form in forecaster.forms}
    assert exponents["floor"] == pytest.approx({"p": truth.p, "q": truth.q}, rel=1e-2)
    if floor:
        assert [form.form for form in forecaster.forms if form.counts] == ["floor"]


def covered(floor: float, num: int, sd: float = 0.005, **how: Any) -> tuple[int, float]:
    """Of so many ladders, how many foretell a run of three seeds; and the median width."""
    truth, hits, widths = Truth(floor=floor), 0, []
    for i in range(num):
        random = np.random.default_rng(i)
        shown: Ladder = ladder(truth, random, sd=sd, **how)
        [point] = Forecaster(shown, seed=i, draws=200).at(TARGET, 3)
        low, high = point.gap_interval
        measured = truth.gap(UPDATES, BATCH) + sd * random.standard_normal(3).mean()
        hits += low <= measured <= high
        widths.append(high - low)
    return hits, float(np.median(widths))


@pytest.mark.parametrize("floor", [FLOORS[0], FLOORS[-1]])
def test_an_interval_holds_a_longer_run_as_often_as_it_says(floor: float) -> None:
    """Whichever form is true, at four times the longest rung; and it is narrow enough to tell."""
    hits, width = covered(floor, 30)
    assert hits >= binom.ppf(CHANCE, 30, CONFIDENCE)
    assert width < 0.025  # gaps of the rungs reach from 0.014 to 0.1


@pytest.mark.parametrize("floor", [FLOORS[0], FLOORS[-1]])
def test_intervals_of_exponents_hold_the_true_ones_as_often_as_they_say(floor: float) -> None:
    """Each of p and q, and narrow enough for the sign of p to be sure in most ladders."""
    truth, held, positive = Truth(floor=floor), {"p": 0, "q": 0}, 0
    for i in range(30):
        shown = ladder(truth, np.random.default_rng(i))
        exponents = Forecaster(shown, seed=i, draws=200).exponents
        for name, value in (("p", truth.p), ("q", truth.q)):
            low, high = exponents[name]
            held[name] += low <= value <= high
        positive += exponents["p"][0] > 0
    assert min(held.values()) >= binom.ppf(CHANCE, 30, CONFIDENCE)
    assert positive >= 20


@pytest.mark.slow
@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize(
    "how", [{}, {"batches": (128,)}, {"lengths": LENGTHS[1:]}, {"seeds": 8}, {"sd": 0.002}], ids=str
)
def test_coverage_of_other_ladders(floor: float, how: dict[str, Any]) -> None:
    hits, _ = covered(floor, 150, **how)
    assert hits >= binom.ppf(CHANCE, 150, CONFIDENCE)
