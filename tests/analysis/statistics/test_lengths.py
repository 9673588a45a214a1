"""Final losses by length are interpolated in the logarithm, never extrapolated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.statistics.lengths import length_to, loss_after, slope_at

RUNS = st.dictionaries(st.integers(1, 10**6), st.floats(0.5, 10), min_size=2, max_size=6)


def test_a_line_in_the_logarithm_of_the_length() -> None:
    assert length_to({100: 3.0, 400: 1.0}, 2.0) == pytest.approx(200)
    assert loss_after({100: 3.0, 400: 1.0}, 200) == pytest.approx(2.0)


def test_an_end_is_inside() -> None:
    assert length_to({100: 3.0, 400: 1.0}, 3.0) == pytest.approx(100)
    assert length_to({100: 3.0, 400: 1.0}, 1.0) == pytest.approx(400)


def test_beyond_the_runs_nothing_is_known_but_the_side() -> None:
    assert np.isnan([loss_after({100: 3.0, 400: 1.0}, at) for at in (99, 401)]).all()
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
