"""The sharpness of a run, in shares of the limits and in words."""

import pytest

from analysis.commands.sharpness import Standing, beside_limits, standing_row, where_it_stands
from tests.support import every_optimizer


def standing(k: float, num_updates: int = 10) -> Standing:
    return Standing(num_updates, 2.0, 0.002, k, 38.0, 1.0)


def test_the_limits_are_those_of_the_optimizer_as_it_stands() -> None:
    """NAdamW's momentum grows over the run, and its limits with it."""
    made = every_optimizer.maker("nadamw")
    node = {"_target_": every_optimizer.address("nadamw"), **made.keywords}
    early, late = beside_limits(node, [standing(1.0, 1), standing(1.0, 10**6)], 1)
    assert late.sync == pytest.approx(13.6, abs=0.05)
    assert late.delayed == pytest.approx(2.53, abs=0.005)
    assert early.delayed < 0.7 * late.delayed


def test_the_sharpest_moment_decides() -> None:
    below = [standing(0.2), standing(0.9, 20), standing(0.5, 30)]
    assert "0.90 of the limit of a delay of 1" in where_it_stands(below, 1)
    assert "after 20 updates" in where_it_stands(below, 1)
    assert not where_it_stands(below, 1).startswith("warning")
    assert where_it_stands([*below, standing(7.6, 40)], 1).startswith(
        "warning: your run sits at 7.60"
    )
    assert "diverged" in where_it_stands([], 1)


def test_a_row_has_both_shares() -> None:
    assert standing_row(standing(1.9, 1600)) == "| 1,600 | 2.000 | 0.002 | 1.90 | 0.05 | 1.90 |"
