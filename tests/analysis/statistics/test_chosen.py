"""After a search the seeds of choice choose the settings, and the others alone compare them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis import best, load
from analysis.table.schema import BEST
from tests.support.synthetic_store import config, result, write

CHOICE = (1000, 1001)


def trained(folder: Path, arm: str, rate: float, losses: dict[int, float | None]) -> None:
    """One trial per seed; None diverges."""
    for seed, loss in losses.items():
        settings = config(arm, seed=seed)
        settings["optimizer"]["lr"] = rate
        write(folder, settings, result(settings, loss))


def one(folder: Path) -> Any:
    table = best(load(folder), CHOICE)
    assert {name: str(table[name].dtype) for name in table} == {k: v[0] for k, v in BEST.items()}
    assert len(table) == 1
    return table.iloc[0]


def test_settings_are_chosen_at_the_seeds_of_choice_and_compared_at_the_others(
    tmp_path: Path,
) -> None:
    trained(tmp_path, "sync", 0.001, {1000: 1.0, 1001: 1.4, 0: 5.0, 1: 5.1, 2: 5.2})
    trained(tmp_path, "sync", 0.002, {1000: 1.3, 1001: 1.3, 0: 3.0, 1: 3.0, 2: 3.0})
    trained(tmp_path, "delay", 0.001, {1000: 2.0, 1001: 2.0, 0: 4.0, 1: 4.0, 2: 4.0})
    trained(tmp_path, "delay", 0.002, {1000: 1.5, 1001: 1.6, 0: 5.3, 1: 5.3, 2: 5.7})
    row = one(tmp_path)
    assert (row["setting_sync"], row["setting"]) == ("optimizer.lr=0.001", "optimizer.lr=0.002")
    gaps = [0.3, 0.2, 0.5]
    assert row["gap"] == pytest.approx(np.mean(gaps))
    assert (row["n"], row["pairs"], row["num_points"]) == (3, 3, 2)
    assert (row["loss_sync"], row["loss"]) == pytest.approx((5.1, 16.3 / 3))
    interval = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
    assert np.isnan(row["gap_same_seeds"])


def test_settings_without_a_sync_or_without_a_seed_are_left_out_and_counted(tmp_path: Path) -> None:
    for rate, sync, delay in (
        (0.001, {1000: 2.0, 1001: 2.0, 0: 2.0, 1: 2.0}, {1000: 3.0, 1001: 3.0, 0: 2.5, 1: None}),
        (0.002, {1000: None, 1001: 1.0}, {1000: 1.0, 1001: 1.0}),
        (0.004, {1000: 1.0}, {1000: 1.0}),
        (0.008, {1000: 2.5, 1001: 2.5}, {1000: None, 1001: 1.0}),
    ):
        trained(tmp_path, "sync", rate, sync)
        trained(tmp_path, "delay", rate, delay)
    row = one(tmp_path)
    assert (row["sync_diverged"], row["incomplete"], row["arm_diverged"]) == (1, 1, 1)
    assert (row["num_points"], row["n"], row["pairs"]) == (2, 1, 2)
    assert row["gap"] == pytest.approx(0.5)


def test_a_coefficient_is_a_part_of_the_setting(tmp_path: Path) -> None:
    for coefficient, loss in ((0.5, 1.2), (1.5, 1.1)):
        for seed in (*CHOICE, 0, 1):
            settings = config("delay_ef", seed=seed)
            settings["correction"]["coefficient"] = coefficient
            write(tmp_path, settings, result(settings, loss + (seed == 1)))
    trained(tmp_path, "sync", 0.004, dict.fromkeys((*CHOICE, 0, 1), 1.0))  # the config's own rate
    row = one(tmp_path)
    assert (row["arm"], row["setting"], row["num_points"]) == ("delay_ef", "delay_ef(1.5)", 2)
    assert (row["gap"], row["n"]) == (pytest.approx(0.6), 2)


def test_without_compared_seeds_nothing_is_averaged(tmp_path: Path) -> None:
    for arm in ("sync", "delay"):
        trained(tmp_path, arm, 0.001, dict.fromkeys(CHOICE, 1.0))
    row = one(tmp_path)
    assert (row["n"], row["pairs"]) == (0, 0)
    assert np.isnan(row["gap"])
