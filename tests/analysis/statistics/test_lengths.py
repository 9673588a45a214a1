"""Final losses by length are interpolated in the logarithm, never extrapolated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.lengths import length_to, no_higher, no_lower, slope_at

RUNS = st.dictionaries(st.integers(1, 10**6), st.floats(0.5, 10), min_size=2, max_size=6)


def test_a_line_in_the_logarithm_of_the_length() -> None:
    assert length_to({100: 3.0, 400: 1.0}, 2.0) == pytest.approx(200)


def test_an_end_is_inside() -> None:
    assert length_to({100: 3.0, 400: 1.0}, 3.0) == pytest.approx(100)
    assert length_to({100: 3.0, 400: 1.0}, 1.0) == pytest.approx(400)


def test_beyond_the_runs_nothing_is_known_but_the_side() -> None:
    assert length_to({100: 3.0, 400: 1.0}, 0.9) == np.inf
    assert length_to({100: 3.0, 400: 1.0}, 3.1) == 0
    assert np.isnan(length_to({100: 3.0, 400: np.nan}, 2.0))


@given(RUNS, st.floats(0.1, 11))
def test_a_length_is_never_beyond_the_runs(finals: dict[int, float], level: float) -> None:
    length = length_to(finals, level)
    assert length in (0, np.inf) or min(finals) * 0.999 <= length <= max(finals) * 1.001


@given(RUNS, st.floats(0.5, 10), st.floats(0.5, 10))
def test_a_lower_loss_never_takes_fewer_updates(
    finals: dict[int, float], low: float, high: float
) -> None:
    low, high = sorted((low, high))
    assert length_to(finals, low) >= length_to(finals, high) * (1 - 1e-9)


def test_runs_that_noise_has_put_out_of_order_are_pooled() -> None:
    """2.0 and 2.2 become 2.1 twice, by hand; 1.8 is half way from there to 1.5."""
    finals = {100: 3.0, 200: 2.0, 400: 2.2, 1600: 1.5}
    assert length_to(finals, 1.8) == pytest.approx(800)
    assert length_to(finals, 2.55) == pytest.approx(100 * np.sqrt(2))


def test_the_slope_is_that_of_the_nearest_runs() -> None:
    finals = {100: 9.0, 200: 2.0, 400: 1.7, 800: 1.4, 1600: 0.0}
    assert slope_at(finals, 400) == pytest.approx(0.3 / np.log(2))
    assert slope_at({200: 2.0, 400: 1.7}, 400) == pytest.approx(0.3 / np.log(2))
    assert slope_at({400: 1.7, 800: 1.4}, 400) == pytest.approx(0.3 / np.log(2))


@pytest.mark.parametrize("finals", [{400: 1.0}, {200: 1.0, 800: 0.5}, {200: 2.0, 400: np.nan}])
def test_without_the_length_and_a_neighbour_there_is_no_slope(finals: dict[int, float]) -> None:
    assert np.isnan(slope_at(finals, 400))


@pytest.mark.parametrize(
    ("updates", "above", "below"),
    [
        (50, {}, {100: 1}),
        (99.5, {100: 1}, {100: 1}),
        (175, {100: 0.75, 400: 0.25}, {400: 1}),
        (400, {400: 1}, {400: 1}),
        (500, {400: 1}, {}),
    ],
)
def test_runs_of_other_lengths_stand_in_on_either_side(
    updates: float, above: dict[int, float], below: dict[int, float]
) -> None:
    lengths = [100, 400]
    assert no_lower(lengths, updates).weights == pytest.approx(above)
    assert no_higher(lengths, updates).weights == below
    assert np.isnan(no_lower([], updates).updates)


@given(st.floats(100, 800), st.floats(0.1, 2), st.floats(20, 2000))
def test_of_a_convex_law_one_side_is_above_and_the_other_below(
    updates: float, exponent: float, memory: float
) -> None:
    laws = [
        lambda t: 1 + t**-exponent,
        lambda t: np.exp(-t / memory),
        lambda t: -np.log(t),
        lambda t: -t / memory,
    ]
    for law in laws:
        finals = {length: float(law(length)) for length in (100, 200, 800)}
        allowed = abs(law(100) - law(101)) + 1e-9  # a run less than an update away is that run
        assert no_lower(finals, updates).loss(finals) >= law(updates) - allowed
        assert no_higher(finals, updates).loss(finals) <= law(updates) + allowed


def test_a_run_that_is_missing_or_diverged_leaves_no_loss() -> None:
    stand_in = no_lower([100, 400], 175)
    assert stand_in.loss({100: 3.0, 400: 1.0}) == pytest.approx(2.5)
    assert np.isnan(stand_in.loss({100: 3.0}))
    assert stand_in.loss({100: 3.0, 400: np.inf}) == np.inf
