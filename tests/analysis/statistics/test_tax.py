"""The token tax of laws whose tax is known."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipegap.analysis import gaps, load
from pipegap.analysis.statistics.tax import (
    LENGTHS,
    SLOPE,
    Crossing,
    Finals,
    Tax,
    best_taxes,
    bracket,
    by_lengths,
    by_slope,
    crossing,
    no_higher,
    no_lower,
    token_tax,
)
from pipegap.analysis.statistics.text import gap_table
from tests.support.synthetic_store import put

T = 400
FLOOR, SCALE, EXPONENT = 1.2, 9.0, 0.45
"""Of sync's law of final losses, L = FLOOR + SCALE · T^-EXPONENT."""


def law(updates: float) -> float:
    return float(FLOOR + SCALE * updates**-EXPONENT)


def runs(
    lengths: Sequence[int],
    *,
    tax: float = 1.0,
    seeds: int = 3,
    noise: float = 0.0,
    chance: np.random.Generator | None = None,
) -> dict[int, dict[int, float]]:
    """Final losses of runs that need `tax` times the updates of sync, with noise of each run."""
    chance = chance or np.random.default_rng(0)
    return {
        seed: {length: law(length / tax) + noise * chance.standard_normal() for length in lengths}
        for seed in range(seeds)
    }


@pytest.mark.parametrize("tax", [1.05, 1.3, 1.9])
def test_delayed_runs_of_several_lengths_tell_the_tax(tax: float) -> None:
    estimate = token_tax(runs([T]), runs([400, 500, 650, 800], tax=tax), T)
    assert (estimate.tax_from, estimate.tax_n) == (LENGTHS, 3)
    assert tax <= estimate.tax <= 1.01 * tax  # a chord lies above the law: a little too large
    assert estimate.tax_low <= tax <= estimate.tax_high <= 1.03 * tax


@pytest.mark.parametrize("tax", [0.9, 1.05, 1.3])
def test_the_law_of_sync_tells_the_tax(tax: float) -> None:
    estimate = token_tax(runs([200, 400, 800]), runs([T], tax=tax), T)
    assert (estimate.tax_from, estimate.tax_n) == (SLOPE, 3)
    assert estimate.tax == pytest.approx(tax, rel=0.05)
    assert estimate.tax_low <= tax <= estimate.tax_high


def test_it_tells_nothing_beyond_the_lengths_of_sync() -> None:
    assert token_tax(runs([300, 400]), runs([T], tax=1.2), T).tax == pytest.approx(1.2, rel=0.01)
    beyond = token_tax(runs([300, 400]), runs([T], tax=1.5), T)
    assert (beyond.tax_n, beyond.tax_why.split(":")[0]) == (
        0,
        "runs of one length only; above 1.33",
    )
    lower = token_tax(runs([300, 400]), runs([T], tax=0.9), T)
    assert (lower.tax_n, lower.tax_why.split(":")[0]) == (0, "runs of one length only; below 1")


def test_measured_runs_count_more_than_the_law() -> None:
    sync, delayed = runs([200, 400, 800]), runs([400, 800], tax=1.3)
    assert by_slope(sync, delayed, T).tax_n == 3
    assert token_tax(sync, delayed, T) == by_lengths(sync, delayed, T)


# Censoring, missing runs


def with_one(runs: Finals, seed: int, finals: Mapping[int, float]) -> Finals:
    """The runs with those of one seed changed."""
    return {**runs, seed: {**runs[seed], **finals}}


@pytest.mark.parametrize(
    ("delayed", "why"),
    [
        (runs([400, 500], tax=1.6), "above 1.25: "),
        (runs([400, 500], tax=0.8), "below 1: "),
        (with_one(runs([400, 800], tax=1.3), 1, {800: np.nan}), "1 of 3 longer or shorter "),
    ],
    ids=["reached by none", "beaten by all", "a longer run diverged"],
)
def test_a_loss_beyond_the_delayed_runs_is_a_bound_and_no_mean_of_some(
    delayed: Finals, why: str
) -> None:
    tax = token_tax(runs([T]), delayed, T)
    assert (tax.tax_n, tax.tax_from) == (0, "")
    assert np.isnan(tax.tax)
    assert tax.tax_why.startswith(why)


def test_the_law_stands_in_where_delayed_runs_are_too_short() -> None:
    tax = token_tax(runs([200, 400, 800]), runs([400, 500], tax=1.35), T)
    assert tax.tax_from == SLOPE
    assert tax.tax_why == ""


def test_seeds_without_the_longer_run_are_left_out() -> None:
    sync, delayed = runs([T]), runs([400, 800], tax=1.3)
    del delayed[1][800]
    tax = token_tax(sync, delayed, T)
    assert tax.tax_n == 2
    del delayed[2][800], delayed[0][400]
    assert token_tax(sync, delayed, T).tax_n == 0


def test_one_seed_has_no_interval() -> None:
    tax = token_tax(runs([T], seeds=1), runs([400, 800], tax=1.3, seeds=1), T)
    assert (tax.tax_n, tax.tax_from) == (1, LENGTHS)
    assert np.isnan([tax.tax_low, tax.tax_high]).all()


def test_two_seeds_of_the_law_count_more_than_one_of_the_lengths() -> None:
    sync, delayed = runs([200, 400]), runs([T], tax=1.2)
    delayed[0][800] = law(800 / 1.2)
    assert token_tax(sync, delayed, T).tax_from == SLOPE
    assert token_tax({0: sync[0]}, {0: delayed[0]}, T).tax_from == LENGTHS


@pytest.mark.parametrize(
    ("sync", "delayed", "why"),
    [
        (runs([T]), runs([T], tax=1.3), "runs of one length only"),
        (runs([T]), {}, "no pair"),
        (runs([T]), {0: {T: np.nan}, 1: {T: 2.0}}, "1 of 2 delayed runs diverged"),
        (runs([T]), runs([200, 800], tax=1.3), "no pair"),
    ],
    ids=["one length", "no delayed run", "diverged", "another length"],
)
def test_without_a_number_there_is_a_reason(sync: Finals, delayed: Finals, why: str) -> None:
    tax = token_tax(sync, delayed, T)
    assert (tax.tax_n, tax.tax_why) == (0, why)


NEARLY_FLAT = {0: {200: 2.0, T: 1.99}, 1: {200: 2.0, T: 2.05}, 2: {200: 2.0, T: 1.95}}
ROUNDING = {0: {200: np.nextafter(2.0, 3.0), T: 2.0}}
"""Its slope is above 0 by a rounding error."""


@pytest.mark.parametrize("sync", [NEARLY_FLAT, ROUNDING], ids=["nearly flat", "rounding error"])
def test_a_law_that_may_be_flat_tells_nothing(sync: Finals) -> None:
    tax = token_tax(sync, {seed: {T: 2.1} for seed in sync}, T)
    assert tax.tax_n == 0
    assert tax.tax_why.endswith(("longer runs are not shown to end lower", "than the delayed runs"))


# In the table of gaps


def store(path: Path, tax: float, lengths: Sequence[int], **keys: float) -> None:
    for length in lengths:
        losses = [law(length) + 0.01 * seed for seed in range(3)]
        delayed = [law(length / tax) + 0.01 * seed for seed in range(3)]
        put(path, "sync", losses, num_updates=length, **keys)
        put(path, "delay", delayed, num_updates=length, **keys)


def gaps_by(path: Path, key: str) -> pd.DataFrame:
    """The table of gaps by a key of the config and by length."""
    trials = load(path)
    columns = [key, "num_updates_asked"]
    keys = trials.drop_duplicates("point").set_index("point")[columns]
    return gaps(trials).join(keys, on="point").set_index(columns)


def test_the_table_has_the_tax_of_each_point(tmp_path: Path) -> None:
    """Runs of another learning rate are another law; the longest run has only sync's slope."""
    store(tmp_path, 1.5, [400, 560, 800], lr=0.004)
    store(tmp_path, 1.2, [400, 560, 800], lr=0.002)
    table = gaps_by(tmp_path, "optimizer.lr")
    for lr, tax in ((0.004, 1.5), (0.002, 1.2)):
        assert table.loc[(lr, 400), "tax"] == pytest.approx(tax, rel=0.02)
        assert table.loc[(lr, 400), "tax_from"] == LENGTHS
        assert table.loc[(lr, 800), "tax_from"] == SLOPE
        assert table.loc[(lr, 800), "tax"] == pytest.approx(tax, rel=0.1)
        assert table.loc[(lr, 800), "tax_n"] == 3
    assert f"{table.loc[(0.004, 400), 'tax']:.2f} [" in gap_table(table)
    assert table.loc[(0.004, 560), "tax_why"].startswith("above 1.43: all delayed runs end higher")
    assert gap_table(table).count("(slope)") == 2


def test_a_decay_that_falls_as_the_length_grows_is_one_law(tmp_path: Path) -> None:
    """Decay × length is 400 in one family and 100, of another law, in the other one."""
    for tax, whole in ((1.5, 400), (1.2, 100)):
        for length in (400, 560, 800):
            store(tmp_path, tax, [length], weight_decay=whole / length)
    table = gaps_by(tmp_path, "optimizer.weight_decay")
    for tax, decay in ((1.5, 1.0), (1.2, 0.25)):
        assert table.loc[(decay, 400), "tax"] == pytest.approx(tax, rel=0.02)
        assert table.loc[(decay, 400), "tax_from"] == LENGTHS


def test_an_option_that_follows_the_length_is_part_of_it(tmp_path: Path) -> None:
    """As AdEMAMix's slow warm-up does; one that differs in another way is another law."""
    for length in (400, 560, 800):
        store(tmp_path / "follows", 1.5, [length], slow_warmup=length)
        store(tmp_path / "differs", 1.5, [length], slow_warmup=length + 100)
    follows = gaps_by(tmp_path / "follows", "optimizer.slow_warmup")
    assert follows.loc[(400, 400), "tax"] == pytest.approx(1.5, rel=0.02)
    differs = gaps(load(tmp_path / "differs"))
    assert {*differs["tax_why"]} == {"runs of one length only"}


def test_lengths_of_one_decay_count_before_those_of_another(tmp_path: Path) -> None:
    """Runs of one setting tell its tax; without any the reason is that they are missing."""
    store(tmp_path, 1.5, [400, 560, 800], weight_decay=1.0)
    store(tmp_path, 3.0, [800], weight_decay=0.5)
    table = gaps_by(tmp_path, "optimizer.weight_decay")
    assert table.loc[(1.0, 400), "tax"] == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("lengths_by_decay", [{1.0: 400, 0.7: 800}, {0.1: 400}])
def test_runs_of_one_length_have_no_column_of_taxes(
    lengths_by_decay: dict[float, int], tmp_path: Path
) -> None:
    """Also where other lengths have another decay that does not fall with the length."""
    for decay, length in lengths_by_decay.items():
        store(tmp_path, 1.5, [length], weight_decay=decay)
    table = gaps(load(tmp_path))
    assert {*table["tax_why"]} == {"runs of one length only"}
    assert len(table) == len(lengths_by_decay)
    assert "token tax" not in gap_table(table)


def test_the_tax_of_an_optimizer_is_that_of_its_best_point_with_a_tax() -> None:
    """A single seed tells one, though without an interval; none at all tells nothing."""
    columns = ["optimizer", "arm", "tax_n", "loss_sync", "tax"]
    rows = [
        ("muon", "delay", 3, 2.0, 1.3),
        ("muon", "delay", 1, 1.9, 1.2),
        ("muon", "delay", 0, 1.8, np.nan),
        ("adamw", "delay", 3, 2.1, 1.5),
    ]
    best = best_taxes(pd.DataFrame(rows, columns=columns))
    assert best["optimizer"].tolist() == ["muon", "adamw"], "in the order of the table"
    assert best["tax"].tolist() == [1.2, 1.5]


def test_a_longer_delayed_run_needs_no_longer_run_of_sync(tmp_path: Path) -> None:
    put(tmp_path, "sync", [law(400)] * 2, num_updates=400)
    put(tmp_path, "delay", [law(400 / 1.1)] * 2, num_updates=400)
    put(tmp_path, "delay", [law(450 / 1.1)] * 2, num_updates=450)
    table = gaps(load(tmp_path)).set_index("pairs")
    assert table.loc[2, "tax"] == pytest.approx(1.1, rel=0.01)
    assert table.index.tolist() == [2], "the longer run was asked for the tax alone"


@pytest.mark.parametrize(("updates", "has_tax"), [(20, False), (99, False), (100, True)])
def test_a_smoke_test_has_no_tax_anywhere(updates: int, has_tax: bool, tmp_path: Path) -> None:
    """Nor do longer runs give one to the loss that it ends at."""
    for length in (updates, 2 * updates, 4 * updates):
        put(tmp_path, "sync", [law(length), law(length) + 0.01], num_updates=length)
        put(tmp_path, "delay", [law(length / 1.3), law(length / 1.3) + 0.01], num_updates=length)
    of_gaps = gaps(load(tmp_path))
    shortest = of_gaps[of_gaps["loss_sync"] == of_gaps["loss_sync"].max()].iloc[0]
    assert (shortest["tax_n"] > 0) == has_tax
    assert ("fewer than 100 updates" in shortest["tax_why"]) != has_tax
    told = gap_table(of_gaps[of_gaps["point"] == shortest["point"]], width=200)
    assert ("token tax" in told) == has_tax


# The interval of the token tax holds the true one in 95 % of simulated stores that have one.

LAWS: Mapping[str, Callable[[float], float]] = {
    "power with a floor": lambda t: 1.2 + 0.9 * (t / 1600) ** -0.22,
    "steeper power": lambda t: 1.2 + 9 * t**-0.45,
    "power": lambda t: 2 * (t / 1600) ** -0.1,
    "logarithm": lambda t: 2 - 0.25 * np.log(t / 1600),
    "exponential": lambda t: 1.2 + np.exp(-t / 1600),
}
"""Final losses of sync by length; a delayed run ends as sync's run of 1 / tax of its length."""
LENGTHS_OF_TAX_COVERAGE = {
    "doubled": ((800, 1600, 3200), (800, 1600, 3200), 1600),
    "a quarter more": ((1600, 2000, 2400), (1600, 2000, 2400), 1600),
    "the main job": ((2000,), (2000, 2750), 2000),
}
"""Lengths of sync's and of the delayed runs, and the length at which the tax is asked for."""
DAILY = {("power with a floor", "doubled"), ("power", "the main job"), ("exponential", "doubled")}
COSTS = [
    pytest.param(law, lengths, marks=[] if (law, lengths) in DAILY else pytest.mark.slow)
    for law in LAWS
    for lengths in LENGTHS_OF_TAX_COVERAGE
]
NOISES = (0.003, 0.01)
"""Of a run, in nats; runs of one seed also share a noise of 0.02."""


def estimate(law: str, lengths: str, tax: float, n: int, noise: float, seed: int) -> Tax:
    """The estimate of one simulated store."""
    rng = np.random.default_rng(seed)
    of_sync, of_delayed, updates = LENGTHS_OF_TAX_COVERAGE[lengths]
    common = rng.normal(0, 0.02, n)

    def runs(of_arm: tuple[int, ...], slower: float) -> Finals:
        return {
            seed: {
                length: LAWS[law](length / slower) + common[seed] + noise * rng.standard_normal()
                for length in of_arm
            }
            for seed in range(n)
        }

    return token_tax(runs(of_sync, 1.0), runs(of_delayed, tax), updates)


@pytest.mark.parametrize(("law", "lengths"), COSTS)
@pytest.mark.parametrize("n", [3, 8, 16])
@pytest.mark.parametrize("tax", [1.02, 1.06, 1.3, 2.0, 3.0])
def test_an_interval_covers(law: str, lengths: str, n: int, tax: float) -> None:
    """Of the stores that have one. A tax at or beyond the end of the lengths often has none."""
    draws = 60 if (law, lengths) in DAILY else 300
    for noise in NOISES:
        taxes = [estimate(law, lengths, tax, n, noise, seed) for seed in range(draws)]
        known = [at.tax_low <= tax <= at.tax_high for at in taxes if at.tax_n > 1]
        wrong = len(known) - sum(known)
        assert wrong <= 0.05 * len(known) + 3 * np.sqrt(0.05 * 0.95 * len(known))
        assert known or tax > 1.3


@pytest.mark.parametrize(
    ("lengths", "tax"), [("the main job", 0.95), ("the main job", 0.98), ("a quarter more", 1.6)]
)
def test_a_tax_beyond_all_lengths_is_seldom_told(lengths: str, tax: float) -> None:
    """That it is told at all depends on the losses: of the intervals that are, 72 to 93 % cover."""
    taxes = [estimate("power with a floor", lengths, tax, 3, 0.01, seed) for seed in range(300)]
    covers = [at.tax_low <= tax <= at.tax_high for at in taxes if at.tax_n > 1]
    assert len(covers) / len(taxes) <= 1 / 3
    assert covers.count(False) / len(taxes) <= 0.05
    assert sum(covers) / len(covers) > 0.72 - 3 * np.sqrt(0.72 * 0.28 / len(covers))


# Final losses by length are interpolated, never extrapolated.

LAWS_OF_LENGTHS: Sequence[Callable[[float], float]] = [
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


@given(st.sampled_from(LAWS_OF_LENGTHS), st.floats(800, 3200))
def test_the_length_of_a_law_lies_within(law: Callable[[float], float], length: float) -> None:
    at = length_at([law(800), law(3200)], law(length), (800, 3200))
    assert at.low * (1 - 1e-9) <= length <= at.high * (1 + 1e-9)


@given(st.sampled_from(LAWS_OF_LENGTHS[:4]), st.floats(700, 800) | st.floats(1600, 1900))
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
