"""The best settings of two arms are compared on seeds that did not choose them.

After a search the seeds of choice choose the settings, and the others alone compare them.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from pipegap.analysis import best, load
from pipegap.analysis.statistics.best import compare
from pipegap.analysis.table.schema import BEST
from tests.support.synthetic_store import config, result, write

CHOICE = (1000, 1001)


def store(folder: Path, losses: dict[str, Any], **changes: Any) -> Path:
    """`losses[arm][rate]` has one loss per seed, or losses by seed; None diverges."""
    for arm, by_rate in losses.items():
        for rate, of_seeds in by_rate.items():
            by_seed = of_seeds if isinstance(of_seeds, dict) else dict(enumerate(of_seeds))
            for seed, loss in by_seed.items():
                settings = config(arm, seed=seed) | changes
                settings["optimizer"]["lr"] = rate
                write(folder, settings, result(settings, loss))
    return folder


def one(folder: Path, choice: Collection[int] = ()) -> Any:
    table = best(load(folder), choice)
    assert {name: str(table[name].dtype) for name in table} == {k: v[0] for k, v in BEST.items()}
    assert len(table) == 1
    return table.iloc[0]


def interval(values: Any, wider: float = 1.0) -> tuple[float, float]:
    ends = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    half = wider * (ends.high - ends.low) / 2
    return np.mean(values) - half, np.mean(values) + half


def test_each_arm_has_its_own_best_setting(tmp_path: Path) -> None:
    sync = {0.001: [2.0, 2.1, 2.2], 0.002: [1.0, 1.1, 1.2], 0.004: [1.5, 1.5, 1.5]}
    delay = {0.001: [1.2, 1.35, 1.45], 0.002: [3.0, 3.0, 3.0], 0.004: [4.0, 4.0, 4.0]}
    row = one(store(tmp_path, {"sync": sync, "delay": delay}))
    assert (row["setting_sync"], row["setting"]) == ("optimizer.lr=0.002", "optimizer.lr=0.001")
    assert (row["n"], row["pairs"], row["num_points"]) == (3, 3, 3)
    assert (row["loss_sync"], row["loss"]) == pytest.approx((1.1, 4 / 3))
    assert row["gap"] == row["gap_same_seeds"] == pytest.approx(0.7 / 3)
    wider = np.sqrt(1 + 3 / 2)
    assert (row["low"], row["high"]) == pytest.approx(interval([0.2, 0.25, 0.25], wider))


def test_a_seed_is_compared_where_the_others_choose(tmp_path: Path) -> None:
    """By hand: on all seeds the arm's best is 0.002, but seeds 0 and 1 alone choose 0.001."""
    sync = {0.001: [1.0, 1.0, 1.0], 0.002: [2.0, 2.0, 2.0]}
    delay = {0.001: [1.1, 1.1, 1.9], 0.002: [1.2, 1.3, 1.2]}
    row = one(store(tmp_path, {"sync": sync, "delay": delay}))
    assert row["setting"] == "optimizer.lr=0.002"
    assert row["gap_same_seeds"] == pytest.approx(0.7 / 3)
    held_out = [0.2, 0.3, 0.9]  # seeds 1, 2 choose 0.002; seeds 0, 2 too; seeds 0, 1 choose 0.001
    assert row["gap"] == pytest.approx(np.mean(held_out))
    ends = [interval(held_out, np.sqrt(1 + 3 / 2)), interval([0.2, 0.3, 0.2])]
    assert row["low"] == pytest.approx(min(low for low, _ in ends))
    assert row["high"] == pytest.approx(max(high for _, high in ends))


def test_what_diverged_is_counted_and_not_chosen(tmp_path: Path) -> None:
    sync = {0.001: [1.0, 1.0, 1.0], 0.002: [0.5, None, 0.5], 0.004: [1.5, 1.5, 1.5]}
    delay = {0.001: [1.1, None, 1.1], 0.002: [0.1, 0.1, 0.1], 0.004: [1.7, 1.7, 1.7]}
    row = one(store(tmp_path, {"sync": sync, "delay": delay}))
    assert (row["num_points"], row["sync_diverged"], row["arm_diverged"]) == (2, 1, 1)
    assert (row["setting_sync"], row["setting"]) == ("optimizer.lr=0.001", "optimizer.lr=0.004")
    # Held out, seed 1 is where the setting that the others choose diverged: 2 of 3 are averaged.
    assert (row["n"], row["pairs"]) == (2, 3)
    assert row["gap"] == pytest.approx(0.7)


def test_an_arm_that_diverged_everywhere_has_no_best(tmp_path: Path) -> None:
    losses = {"sync": {0.001: [1.0, 1.0]}, "delay": {0.001: [None, 1.0]}}
    row = one(store(tmp_path, losses))
    assert (row["n"], row["pairs"], row["arm_diverged"]) == (0, 2, 1)
    assert np.isnan(row["gap"])


def test_settings_that_lack_a_seed_are_counted_and_not_chosen(tmp_path: Path) -> None:
    sync = {0.001: [1.0, 1.0, 1.0], 0.002: [0.1]}
    delay = {0.001: [1.2, 1.3, 1.2], 0.002: [0.1]}
    row = one(store(tmp_path, {"sync": sync, "delay": delay}))
    assert (row["num_points"], row["incomplete"]) == (1, 1)
    assert row["gap"] == pytest.approx(0.7 / 3)


def test_one_seed_has_a_best_and_no_gap(tmp_path: Path) -> None:
    row = one(store(tmp_path, {"sync": {0.001: [1.0]}, "delay": {0.001: [1.2]}}))
    assert (row["n"], row["gap_same_seeds"]) == (0, pytest.approx(0.2))
    assert np.isnan([row["gap"], row["low"]]).all()


def test_other_tasks_are_no_settings(tmp_path: Path) -> None:
    """A longer run is not a better setting; a batch twice as large for half the updates is one."""
    for batch, updates, loss in ((16, 400, 1.0), (32, 200, 0.9), (16, 800, 0.5)):
        by_arm = {"sync": {0.001: [loss] * 2}, "delay": {0.001: [loss + 0.2] * 2}}
        store(tmp_path, by_arm, batch_size=batch, num_updates=updates)
    table = best(load(tmp_path)).set_index("task")
    assert table["num_points"].to_dict() == {"tokens=819200": 2, "tokens=1638400": 1}
    assert table["loss_sync"].to_dict() == pytest.approx(
        {"tokens=819200": 0.9, "tokens=1638400": 0.5}
    )


def test_nothing_to_compare_gives_an_empty_table(tmp_path: Path) -> None:
    assert list(best(load(tmp_path))) == list(BEST)
    assert best(load(store(tmp_path, {"sync": {0.001: [1.0]}}))).empty


STEEP, FLAT, MILD = (0.05 * (np.arange(6) - 2) ** 2, np.zeros(6), 0.003 * (np.arange(6) - 3) ** 2)


@pytest.mark.parametrize("n", [3, 8, 16])
@pytest.mark.parametrize(
    ("of_sync", "of_arm"),
    [(STEEP, STEEP[::-1]), (STEEP, FLAT), (FLAT, FLAT), (MILD, MILD[::-1])],
    ids=["clear", "the arm's settings are alike", "all are alike", "nearly alike"],
)
def test_few_and_many_seeds_cover_95_percent(
    n: int, of_sync: NDArray[Any], of_arm: NDArray[Any]
) -> None:
    """And `gap` has no bias; the one of the same seeds has, where the arm's settings are alike."""
    rng, draws, truth = np.random.default_rng(0), 1_000, 0.1
    compared = []
    for _ in range(draws):
        sync = of_sync[:, None] + rng.normal(0, 0.01, (6, n))
        compared.append(compare(sync, truth + of_arm[:, None] + rng.normal(0, 0.01, (6, n))))
    kept = [bests for bests in compared if bests is not None]
    covered = np.mean([low <= truth <= high for low, high in (bests.interval for bests in kept)])
    assert len(kept) == draws
    assert covered >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / draws)
    gaps = np.array([bests.held_out.mean() for bests in kept])
    # A setting that is a little worse is chosen at times, in each arm alike.
    assert gaps.mean() == pytest.approx(truth, abs=4 * gaps.std() / np.sqrt(draws) + 1e-3)
    if of_sync is STEEP and of_arm is FLAT:
        assert np.mean([bests.same_seeds.mean() for bests in kept]) < truth - 0.008 / np.sqrt(n)


def test_settings_are_chosen_at_the_seeds_of_choice_and_compared_at_the_others(
    tmp_path: Path,
) -> None:
    sync = {
        0.001: {1000: 1.0, 1001: 1.4, 0: 5.0, 1: 5.1, 2: 5.2},
        0.002: {1000: 1.3, 1001: 1.3, 0: 3.0, 1: 3.0, 2: 3.0},
    }
    delay = {
        0.001: {1000: 2.0, 1001: 2.0, 0: 4.0, 1: 4.0, 2: 4.0},
        0.002: {1000: 1.5, 1001: 1.6, 0: 5.3, 1: 5.3, 2: 5.7},
    }
    row = one(store(tmp_path, {"sync": sync, "delay": delay}), CHOICE)
    assert (row["setting_sync"], row["setting"]) == ("optimizer.lr=0.001", "optimizer.lr=0.002")
    gaps = [0.3, 0.2, 0.5]
    assert row["gap"] == pytest.approx(np.mean(gaps))
    assert (row["n"], row["pairs"], row["num_points"]) == (3, 3, 2)
    assert (row["loss_sync"], row["loss"]) == pytest.approx((5.1, 16.3 / 3))
    assert (row["low"], row["high"]) == pytest.approx(interval(gaps))
    assert np.isnan(row["gap_same_seeds"])


def test_settings_without_a_sync_or_without_a_seed_are_left_out_and_counted(tmp_path: Path) -> None:
    both = {1000: 1.0, 1001: 1.0}
    sync = {
        0.001: {1000: 2.0, 1001: 2.0, 0: 2.0, 1: 2.0},
        **{0.002: {1000: None, 1001: 1.0}, 0.004: {1000: 1.0}, 0.008: {1000: 2.5, 1001: 2.5}},
    }
    delay = {
        0.001: {1000: 3.0, 1001: 3.0, 0: 2.5, 1: None},
        **{0.002: both, 0.004: {1000: 1.0}, 0.008: {1000: None, 1001: 1.0}},
    }
    row = one(store(tmp_path, {"sync": sync, "delay": delay}), CHOICE)
    assert (row["sync_diverged"], row["incomplete"], row["arm_diverged"]) == (1, 1, 1)
    assert (row["num_points"], row["n"], row["pairs"]) == (2, 1, 2)
    assert row["gap"] == pytest.approx(0.5)


def test_a_coefficient_is_a_part_of_the_setting(tmp_path: Path) -> None:
    for coefficient, loss in ((0.5, 1.2), (1.5, 1.1)):
        for seed in (*CHOICE, 0, 1):
            settings = config("delay_ef", seed=seed)
            settings["correction"]["coefficient"] = coefficient
            write(tmp_path, settings, result(settings, loss + (seed == 1)))
    at_rate_of_config = {0.004: dict.fromkeys((*CHOICE, 0, 1), 1.0)}
    row = one(store(tmp_path, {"sync": at_rate_of_config}), CHOICE)
    assert (row["arm"], row["setting"], row["num_points"]) == ("delay_ef", "delay_ef(1.5)", 2)
    assert (row["gap"], row["n"]) == (pytest.approx(0.6), 2)


def test_without_compared_seeds_nothing_is_averaged(tmp_path: Path) -> None:
    alike = {0.001: dict.fromkeys(CHOICE, 1.0)}
    row = one(store(tmp_path, {"sync": alike, "delay": alike}), CHOICE)
    assert (row["n"], row["pairs"]) == (0, 0)
    assert np.isnan(row["gap"])
