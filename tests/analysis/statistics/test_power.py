"""What a plan says of its seeds: against simulated experiments, and a search by hand."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis.statistics.gaps import spreads
from pipegap.analysis.statistics.intervals import detectable_gap, seeds_needed
from tests.support import synthetic_store

NUM_EXPERIMENTS = 40_000


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_the_detectable_gap_is_detected_four_times_in_five(n: int) -> None:
    """By scipy's own t-test of simulated gaps: the binomial error of the share is 0.002."""
    sd = 0.03
    gaps = np.random.default_rng(n).normal(detectable_gap(sd, n), sd, (NUM_EXPERIMENTS, n))
    detected = stats.ttest_1samp(gaps, 0, axis=1).pvalue < 0.05
    assert detected.mean() == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 1, 3, 20])
def test_so_many_seeds_reach_a_precision_and_one_less_does_not(ratio: float) -> None:
    n = seeds_needed(ratio, 1.0)

    def reaches(n: int) -> bool:
        low, high = stats.t.interval(0.95, n - 1, scale=ratio / math.sqrt(n))
        return bool((high - low) / 2 <= 1)

    assert n >= 2
    assert reaches(n)
    assert n == 2 or not reaches(n - 1)


def test_the_spread_of_an_optimizer_is_pooled_over_its_arms(tmp_path: Path) -> None:
    """AdamW's gaps 0.1, 0.3 of one arm and 0.2, 0.2, 0.5 of another: squares 0.02 and 0.06, of 1
    and 2 degrees of freedom.

    What diverged is no pair; an optimizer with one pair an arm, or two of one arm, has no spread.
    """
    synthetic_store.write_arms(
        tmp_path, {"sync": [2.0] * 3, "delay": [2.1, 2.3, None], "delay_ef": [2.2, 2.2, 2.5]}
    )
    synthetic_store.write_arms(
        tmp_path, {"sync": [3.0, 3.0], "delay": [3.2, None]}, optimizer="muon"
    )
    synthetic_store.write_arms(
        tmp_path, {"sync": [3.0, 3.0], "delay": [3.2, 3.3]}, optimizer="soap"
    )
    everything = [folder.name for folder in (tmp_path / "trials").iterdir()]
    [(optimizer, spread)] = spreads(tmp_path, everything).items()
    assert optimizer == "adamw"
    assert spread.sd == pytest.approx(math.sqrt((0.02 + 0.06) / 3))
    assert spread.num_pairs == 5
    assert spreads(tmp_path, everything[:1]) == {}
    assert spreads(tmp_path, []) == {}


def test_three_pairs_of_one_arm_are_enough_for_a_spread(tmp_path: Path) -> None:
    synthetic_store.write_arms(tmp_path, {"sync": [2.0] * 3, "delay": [2.1, 2.2, 2.3]})
    everything = [folder.name for folder in (tmp_path / "trials").iterdir()]
    [spread] = spreads(tmp_path, everything).values()
    assert spread.sd == pytest.approx(0.1)
