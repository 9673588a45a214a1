"""Intervals agree with scipy and with their definition, and cover what they claim."""

import math
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from pipegap.analysis import best, load
from pipegap.analysis.statistics.diagnostics import (
    crossed_interval,
    detectable_difference,
    intervals,
    noise,
    seeds_needed,
)
from pipegap.analysis.statistics.gaps import compare
from pipegap.analysis.statistics.pairs import (
    UNTOLD,
    excludes_zero,
    mean_interval,
    mean_intervals,
    quantile,
    ratio_interval,
    share_interval,
    share_text,
)
from pipegap.analysis.table.schema import BEST
from tests.support.synthetic_store import config, result, write


def generator() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize("n", [2, 3, 20, 64])
def test_it_is_students_t_at_every_n(n: int) -> None:
    values = generator().normal(0.3, 0.1, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("interval", "excludes"),
    [
        ((0.1, 1.0), True),
        ((-1.0, -0.1), True),
        ((-1.0, 1.0), False),
        ((0.0, 1.0), False),
        ((-1.0, 0.0), False),
        ((np.nan, np.nan), False),
    ],
)
def test_zero_is_excluded_on_either_side(interval: tuple[float, float], excludes: bool) -> None:
    assert excludes_zero(interval) is excludes


def test_many_means_are_as_one_by_one_and_a_confidence_is_a_choice() -> None:
    values = generator().normal(0.1, 0.05, (4, 3, 5))
    low, high = mean_intervals(values, 0.99)
    expected = stats.ttest_1samp(values, 0, axis=-1).confidence_interval(0.99)
    assert low == pytest.approx(expected.low)
    assert high == pytest.approx(expected.high)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([1.0], (np.nan, np.nan)),
        ([0.5] * 3, (0.5, 0.5)),
        ([0.5] * 25, (0.5, 0.5)),
        ([np.inf] * 3, (np.inf, np.inf)),
        ([np.inf, 1.0, 2.0], (np.nan, np.nan)),
        ([np.inf, -np.inf], (np.nan, np.nan)),
    ],
    ids=["one value", "equal", "many equal", "all infinite", "some infinite", "both infinities"],
)
def test_values_without_a_spread(values: list[float], interval: tuple[float, float]) -> None:
    assert np.array_equal(mean_interval(np.array(values)), interval, equal_nan=True)


def test_the_ends_of_a_ratio_are_where_its_t_test_turns() -> None:
    rng = generator()
    whole = rng.normal(0.3, 0.04, 5)
    left = 0.4 * whole + rng.normal(0, 0.02, 5)
    for end in ratio_interval(left, whole):
        assert stats.ttest_1samp(left - end * whole, 0).pvalue == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("n", "gap", "share"),
    [
        *((3, 1.0, 0.95), (3, 3.0, 0.95), (5, 1.0, 0.95), (5, 3.0, 0.95), (8, 2.0, 0.95)),
        *((8, 4.0, 0.95), (8, 1.0, 0.9), (8, 0.01, 0.9), (5, 0.01, 0.9)),
    ],
    ids=str,
)
def test_the_interval_of_a_share_covers_it_where_it_is_told(
    n: int, gap: float, share: float
) -> None:
    """`gap`: the true one, in standard errors of its mean. Losses of three arms have noise of one
    size, and a correction removes nothing or all. Where the gap's 95 % interval excludes 0,
    Fieller's of 95 % covers 91 to 94 %; of intervals narrower than 300 % it would be 77 to 93 %.
    Of 3,000 intervals 95 % has a standard error of 0.4 %."""
    rng, covered, num_told = generator(), 0, 0
    for left in (1.0, 0.0):
        sync, delay, corrected = rng.normal(0, np.sqrt(n / 2), (3, 250_000, n))
        wholes, parts = gap + delay - sync, left * gap + corrected - sync
        spread = wholes.std(axis=1, ddof=1) / np.sqrt(n)
        seen = np.abs(wholes.mean(axis=1)) > quantile(n, 0.99) * spread
        assert np.isnan(share_interval(parts[~seen][0], wholes[~seen][0])).all()
        for part, whole in zip(parts[seen][:1_500], wholes[seen][:1_500], strict=True):
            low, high = share_interval(part, whole)
            if share_text(1 - part.mean() / whole.mean(), 1 - high, 1 - low) != UNTOLD:
                covered, num_told = covered + (low <= left <= high), num_told + 1
    assert num_told == 3_000
    assert covered / num_told > share - 3 * np.sqrt(share * (1 - share) / num_told)


def test_the_interval_of_a_share_of_a_plain_gap_is_fiellers() -> None:
    rng = generator()
    whole = rng.normal(0.3, 0.02, 5)
    left = 0.4 * whole + rng.normal(0, 0.02, 5)
    assert share_interval(left, whole) == ratio_interval(left, whole)
    weak = whole.mean() + (whole - whole.mean()) * 8  # p = 0.005
    assert 0.003 < stats.ttest_1samp(weak, 0).pvalue < 0.01
    assert share_interval(left, weak) == ratio_interval(left, weak, 0.99)


def test_a_ratio_to_what_may_be_zero_is_unknown() -> None:
    assert np.isnan(ratio_interval(np.array([1.0, 2.0, 3.0]), np.array([-1.0, 0.1, 1.0]))).all()
    assert np.isnan(ratio_interval(np.array([1.0]), np.array([2.0]))).all()


# The best settings of two arms are compared on seeds that did not choose them.
#
# After a search the seeds of choice choose the settings, and the others alone compare them.

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


def test_settings_of_two_machines_are_named_though_each_pair_is_of_one(tmp_path: Path) -> None:
    """Sync is best on an A100, the delay on an H100, at one of three seeds."""
    for device, rate, sync, delay in (("A100", 0.001, 1.0, 1.4), ("H100", 0.002, 1.2, 1.3)):
        for arm, loss in (("sync", sync), ("delay", delay)):
            for seed in range(3):
                settings = config(arm, seed=seed)
                settings["optimizer"]["lr"] = rate
                machine = {"device_name": device if seed == 1 else "A100"}
                write(tmp_path, settings, result(settings, loss + seed / 100, **machine))
    says = r"1 of 3 seeds with settings .* \(A100, torch 2\.13\.0 and H100, torch 2\.13\.0, for"
    with pytest.warns(UserWarning, match=says):
        row = one(tmp_path)
    assert row["gap_same_seeds"] == pytest.approx(0.3)


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


# Intervals over seeds and questions cover the mean as often as they say.

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
