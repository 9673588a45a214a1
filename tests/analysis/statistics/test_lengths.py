"""Final losses by length are interpolated, never extrapolated."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipegap.analysis.statistics.tax import Crossing, bracket, crossing, no_higher, no_lower

LAWS: Sequence[Callable[[float], float]] = [
    lambda t: 1.2 + 0.9 * (t / 1600) ** -0.22,
    lambda t: t**-0.7,
    lambda t: -np.log(t),
    lambda t: np.exp(-t / 1600),
    lambda t: -t / 1600,
    lambda t: 1 / t,
]
"""Convex in the length, and between 800 and 3200 no steeper than 1 / T."""


def length_at(losses: Sequence[float], level: float, lengths: tuple[int, int]) -> Crossing:
    """Where runs of two lengths that end at these losses cross a level, without noise."""
    above, below, levels = (np.full(3, loss) for loss in (*losses, level))
    return crossing(above, below, levels, lengths, 0.95)


def test_a_line_in_the_logarithm_of_the_length() -> None:
    """Half way, and between lines that are straight in T and in 1 / T."""
    at = length_at((3.0, 1.0), 2.0, (100, 400))
    assert at == pytest.approx((200, 160, 250))


@given(st.sampled_from(LAWS), st.floats(800, 3200))
def test_the_length_of_a_law_lies_within(law: Callable[[float], float], length: float) -> None:
    at = length_at([law(800), law(3200)], law(length), (800, 3200))
    assert at.low * (1 - 1e-9) <= length <= at.high * (1 + 1e-9)


@given(st.sampled_from(LAWS[:4]), st.floats(700, 800) | st.floats(1600, 1900))
def test_also_a_little_beyond(law: Callable[[float], float], length: float) -> None:
    at = length_at([law(800), law(1600)], law(length), (800, 1600))
    assert at.low * (1 - 1e-9) <= length <= at.high * (1 + 1e-9)


def test_a_way_beyond_what_a_form_can_reach_has_no_end() -> None:
    assert length_at((3.0, 1.0), -1.0, (100, 200)).high == np.inf
    assert length_at((3.0, 1.0), 5.0, (100, 200)).low == 0


def test_losses_that_are_not_shown_to_fall_cross_nowhere() -> None:
    above, below = np.array([2.0, 2.0, 2.0]), np.array([1.99, 2.05, 1.95])
    assert np.isnan(crossing(above, below, above - 0.001, (100, 200), 0.95)).all()


def test_one_seed_has_a_length_without_an_interval() -> None:
    at = crossing(np.array([3.0]), np.array([1.0]), np.array([2.0]), (100, 400), 0.95)
    assert at.length == pytest.approx(200)
    assert np.isnan([at.low, at.high]).all()


@pytest.mark.parametrize(
    ("level", "ends"),
    [
        (2.5, (100, 400)),
        (2.0, (100, 400)),
        (1.7, (400, 900)),
        (1.0, (400, 900)),
        (0.9, np.inf),
        (3.1, 0.0),
    ],
)
def test_a_level_lies_between_neighbouring_lengths_or_beyond(
    level: float, ends: tuple[int, int] | float
) -> None:
    """Means over two seeds of 3, 2 and 1."""
    finals = [{100: 2.5, 400: 2.5, 900: 1.0}, {900: 1.0, 400: 1.5, 100: 3.5}]
    assert bracket(finals, level) == ends


def test_a_longer_run_that_ends_higher_is_no_end_of_a_fall() -> None:
    assert bracket([{100: 3.0, 200: 2.0, 400: 2.2, 1600: 1.5}], 2.1) == (100, 200)
    assert bracket([{100: 2.0, 200: 2.0, 400: 1.0}], 2.0) == (200, 400)


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
