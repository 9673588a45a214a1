"""Each claim of the paper is judged by its rule: reproduced, contradicted, not enough data."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipegap.analysis import load
from pipegap.analysis.claims import judged
from pipegap.analysis.claims.measure import Column, more
from pipegap.analysis.claims.rule import (
    OF_CODE,
    Comparison,
    Outcome,
    Row,
    Verdict,
    against,
    audit,
    audited,
)
from tests.support.claim_stores import (
    AUDITED,
    BY_NAME,
    COOLED,
    LARGER,
    LONG,
    MOE,
    MOST,
    NO,
    OPEN,
    ORDER,
    PARTS,
    ROBUST,
    SIX,
    SLACK,
    SPREAD,
    STARTED,
    STORES,
    WIDE,
    YES,
    Group,
    answered,
    coefficients,
    depths,
    feedback,
    of,
    rates,
    starts,
    store,
    stored,
    stored_parts,
    swept,
    verdict,
)
from tests.support.synthetic_store import config, put, result, write

CASES: dict[str, dict[Outcome, list[Group]]] = {
    "delay_costs": {YES: [Group(0.1)], NO: [Group(-0.1)], OPEN: [Group(0.1, spread=WIDE)]},
    "adamw_over_muon": {
        YES: of({"adamw": 0.3, "muon": 0.1}),
        NO: of({"adamw": 0.1, "muon": 0.3}),
        OPEN: of({"adamw": 0.3}),
    },
    "adamw_over_muon_own": {
        YES: [*swept("lr", {0.1: 0.3}), *swept("lr", {0.4: 0.1}, optimizer="muon")],
        NO: [*swept("lr", {0.1: 0.1}), *swept("lr", {0.4: 0.3}, optimizer="muon")],
        OPEN: [*swept("lr", {0.1: 0.1}), *swept("lr", {0.4: 0.1}, optimizer="muon")],
    },
    "robust_three": {
        YES: of({"muon": 0.1, "soap": 0.2, "adamw": 0.3}),
        NO: of({"muon": 0.2, "soap": 0.1, "adamw": 0.3}),
        OPEN: of({"muon": 0.1, "soap": 0.1, "adamw": 0.3}),
    },
    "order": {
        YES: of({"adamw": 0.3, "mars": 0.4, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, **ROBUST, "soap": 0.5}),
        OPEN: of({"adamw": 0.3, **ROBUST}),
    },
    "lion_between": {
        YES: of({"adamw": 0.3, "mars": 0.4, "lion": 0.2, **ROBUST}),
        NO: of({"adamw": 0.3, "mars": 0.4, "lion": 0.05, **ROBUST}),
        OPEN: of({"adamw": 0.3, "mars": 0.4, "lion": 0.1, **ROBUST}),
    },
    "ef_helps": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.5),
        OPEN: feedback(0.01, 0.009, spread=WIDE),
    },
    "ef_most": {
        YES: feedback(0.4, 0.1),
        NO: feedback(0.4, 0.3),
        OPEN: feedback(0.4, 0.1, spread=(0.0, 0.05, -0.05)),
    },
    "momentum": {
        YES: swept("momentum", {0.8: 0.4, 0.9: 0.3, 0.99: 0.1}, LONG),
        NO: swept("momentum", {0.8: 0.1, 0.9: 0.3, 0.99: 0.4}, LONG),
        OPEN: swept("momentum", {0.8: 0.4, 0.99: 0.4}, LONG),
    },
    "depth": {
        YES: depths({2: 0.1, 4: 0.6, 8: 0.5}),
        NO: depths({2: 0.5, 8: 0.1}),
        OPEN: depths({2: 0.1, 8: 0.1}),
    },
    "best_over_grid": {
        YES: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon"),
        NO: swept("lr", {0.1: 0.1, 0.2: 0.5}, optimizer="muon"),
        OPEN: swept("lr", {0.1: 0.0, 0.2: 0.5}, optimizer="muon", spread=WIDE),
    },
    "large_batches": {
        YES: swept("batch_size", {8: 0.1, 16: 0.5}),
        NO: swept("batch_size", {8: 0.5, 16: 0.1}),
        OPEN: swept("batch_size", {8: 0.1}),
    },
    **{
        name: {
            YES: feedback(0.1, 0.0, keys={"num_updates": 800}),
            NO: feedback(0.1, 0.05, keys={"num_updates": 800}),
            OPEN: feedback(0.0, 0.0, keys={"num_updates": 800}),
        }
        for name in ("horizon", "moe_horizon")
    },
    "moe_rate": {
        YES: rates({0.1: 0.45, 0.2: 0.4, 0.4: 0.6}),
        NO: rates({0.1: 0.1, 0.2: 0.4, 0.4: 0.6}),
        OPEN: rates({0.1: 0.39, 0.2: 0.4, 0.4: 0.6}),
    },
    "families_muon": {
        YES: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.3, "muon": 0.1}, keys=MOE)],
        NO: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.1, "muon": 0.3}, keys=MOE)],
        OPEN: [*of({"adamw": 0.3, "muon": 0.1}), *of({"adamw": 0.3, "muon": 0.3}, keys=MOE)],
    },
    "families_ef": {
        YES: [*feedback(0.4, 0.1), *feedback(0.3, 0.2, keys=MOE)],
        NO: [*feedback(0.4, 0.1), *feedback(0.3, 0.4, keys=MOE)],
        OPEN: [*feedback(0.4, 0.1), *feedback(0.0, 0.0, keys=MOE)],
    },
    "coefficient": {
        YES: coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.098, 1.5: 0.11}),
        NO: coefficients("ef", {0.5: 0.25, 1.0: 0.2, 1.25: 0.05}),
        OPEN: coefficients("ef", {0.5: 0.2, 1.0: 0.4}),
    },
    "taylor": {
        YES: coefficients("taylor", {100.0: 0.4, 1000.0: 0.5}),
        NO: coefficients("taylor", {100.0: 0.39, 1000.0: 0.2}),
        OPEN: coefficients("taylor", {100.0: 0.4, 1000.0: 0.4}),
    },
    "gradient_feedback": {
        YES: coefficients("ef_gradient", {1.0: None}, spread=SIX),
        NO: coefficients("ef_gradient", {1.0: 0.2}, spread=SIX),
        OPEN: [Group(0.4)],
    },
    "spike": {
        YES: starts({0.99: 1.0}),
        NO: starts({0.99: -1.0}, spread=SPREAD),
        OPEN: starts({0.99: 0.1}, spread=WIDE),
    },
    "spike_by_decay": {
        YES: starts({0.9: 0.5, 0.999: 1.0}),
        NO: [*starts({0.9: 1.0}), *starts({0.999: 1.0}, spread=SPREAD[::-1])],
        OPEN: [*starts({0.9: 1.0}), *starts({0.999: 1.5}, spread=WIDE)],
    },
    "start": {
        YES: [Group(0.4), Group(0.1, pipeline=STARTED)],
        NO: [Group(0.1), Group(0.4, pipeline=STARTED)],
        OPEN: [Group(0.1, pipeline=STARTED)],
    },
    **{
        name: {
            YES: answered(0.0, spread=(0.0, 0.0, 0.0)),
            NO: answered(-3.0),
            OPEN: answered(0.0, spread=WIDE),
        }
        for name in ("downstream", "downstream_bits")
    },
    "cooldown": {
        YES: [Group(0.4), Group(0.1, pipeline=COOLED)],
        NO: [Group(0.1), Group(0.4, pipeline=COOLED)],
        OPEN: [Group(0.1, pipeline=COOLED)],
    },
}


def test_every_claim_is_tested() -> None:
    assert set(CASES) == set(BY_NAME)
    assert all(set(by_outcome) == {*Outcome} for by_outcome in CASES.values())


@pytest.mark.parametrize("outcome", [*Outcome])
@pytest.mark.parametrize("name", CASES)
def test_known_answers(name: str, outcome: Outcome, tmp_path: Path) -> None:
    store(tmp_path, CASES[name][outcome])
    judgement = verdict(name, tmp_path)
    assert judgement.outcome == outcome, judgement
    assert {type(comparison.rule) for comparison in judgement.comparisons} <= AUDITED
    if outcome != OPEN:
        assert all(part.numbers for part in judgement.parts)
    else:
        assert any(part.why for part in judgement.parts)


@pytest.mark.parametrize("name", BY_NAME)
def test_no_claim_is_decided_by_one_seed_or_short_trials(name: str, tmp_path: Path) -> None:
    for folder, groups, updates in (
        ("seed", [group._replace(spread=[0.0]) for group in CASES[name][YES]], 400),
        ("short", CASES[name][YES], 99),
    ):
        store(tmp_path / folder, groups, updates)
        if folder == "short":
            for path in (tmp_path / folder).rglob("result.json"):
                path.write_text(json.dumps({**json.loads(path.read_text()), "num_updates": 99}))
        assert verdict(name, tmp_path / folder).outcome == OPEN


@pytest.fixture(scope="module")
def only_sync(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The trials of a sweep of which only sync is done."""
    folder, settings = tmp_path_factory.mktemp("sync"), config("sync")
    write(folder, settings, result(settings, 2.0))
    return load(folder)


@pytest.mark.parametrize("name", BY_NAME)
def test_trials_that_say_nothing_of_a_claim(name: str, only_sync: pd.DataFrame) -> None:
    judgement = judged(BY_NAME[name], only_sync)
    assert judgement.outcome == OPEN
    assert all(part.why for part in judgement.parts)
    assert judged(BY_NAME[name], only_sync[:0]).outcome == OPEN


# What may decide a claim: pairs of the paper's own trials, and nothing that noise would show.


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    store(tmp_path, of({"adamw": 0.3, **ROBUST}))
    whys = {part.what: part.why for part in verdict("order", tmp_path).parts}
    assert whys["muon less than mars"] == "mars is missing"
    assert whys["muon less than adamw"] == ""


def test_longer_trials_beside_them_make_short_ones_no_evidence(tmp_path: Path) -> None:
    """As those that a sweep trains for its answer, by the speed-up."""
    losses: dict[str, list[float | None]] = {"sync": [2.0, 2.1, 2.2], "delay": [2.3, 2.41, 2.5]}
    for arm, of_seeds in losses.items():
        put(tmp_path, arm, of_seeds, num_updates=80)
    put(tmp_path, "delay", losses["delay"], num_updates=110)
    [part] = verdict("delay_costs", tmp_path).parts
    assert (part.outcome, part.numbers) == (OPEN, ())
    put(tmp_path, "sync", losses["sync"], num_updates=110)
    [part] = verdict("delay_costs", tmp_path).parts
    assert part.outcome == YES


def test_an_arm_that_diverged_everywhere_lost_and_one_that_did_in_part_decides_nothing(
    tmp_path: Path,
) -> None:
    store(tmp_path / "all", [Group(None), Group(0.1, "muon")])
    judgement = verdict("adamw_over_muon", tmp_path / "all")
    assert judgement.outcome == YES
    assert "adamw diverged at 3 of 3" in [str(number) for number in judgement.parts[0].numbers]
    store(tmp_path / "part", [Group(0.3), Group(0.1, "muon")])
    path = next(
        p.parent
        for p in (tmp_path / "part").rglob("config.json")
        if "2bw" in p.read_text() and "adamw" in p.read_text()
    )
    settings = json.loads((path / "config.json").read_text())
    lost = {"trial_id": path.name, **result(settings, None)}
    (path / "result.json").write_text(json.dumps(lost))
    judgement = verdict("adamw_over_muon", tmp_path / "part")
    assert judgement.outcome == OPEN
    assert "adamw: 1 of 3 diverged" in judgement.parts[0].why


def test_a_difference_that_two_intervals_cannot_tell_is_decided_by_pairs(tmp_path: Path) -> None:
    """Seeds that move both gaps alike: each interval is 0.5 wide, their difference has none."""
    groups = [Group(0.4, spread=WIDE), Group(0.3, spread=WIDE, pipeline=COOLED)]
    store(tmp_path, groups)
    judgement = verdict("cooldown", tmp_path)
    assert judgement.outcome == YES
    arm, base, difference = judgement.parts[0].numbers
    assert arm.high > base.low
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))


def test_only_the_papers_optimizers_judge_it_and_others_have_their_own_line(tmp_path: Path) -> None:
    store(tmp_path, [*feedback(0.4, 0.1), *feedback(0.3, 0.4, optimizer="nadamw")])
    for name in ("ef_helps", "ef_most"):
        judgement = verdict(name, tmp_path)
        assert judgement.outcome == YES
        assert [part.what for part in judgement.parts] == ["adamw"]
        assert [(part.what, part.outcome) for part in judgement.other_parts] == [("nadamw", NO)]


def test_half_of_the_gap_that_is_left_is_no_sync_however_wide_its_interval(tmp_path: Path) -> None:
    """The interval of what is left holds 0: that is no sign of equality."""
    store(tmp_path, [Group(0.1), Group(0.05, correction="ef", spread=(0.0, 0.03, -0.03))])
    judgement = verdict("horizon", tmp_path)
    assert judgement.parts[0].numbers[1].low < 0
    assert judgement.outcome == OPEN


def test_the_best_at_the_edge_of_the_grid_decides_nothing(tmp_path: Path) -> None:
    store(tmp_path, coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.098}))
    judgement = verdict("coefficient", tmp_path)
    assert judgement.outcome == OPEN
    assert "edge of the grid" in judgement.parts[0].why


@pytest.mark.parametrize(("updates", "says"), [(9_999, OPEN), (10_000, YES)])
def test_a_momentum_needs_a_run_that_is_long_beside_its_memory(
    updates: int, says: Outcome, tmp_path: Path
) -> None:
    long = {"num_updates": updates}
    store(tmp_path, swept("momentum", {0.95: 0.3, 0.99: 0.1}, long))
    assert verdict("momentum", tmp_path).outcome == says


def test_short_momenta_are_judged_where_long_ones_cannot_be(tmp_path: Path) -> None:
    store(tmp_path, swept("momentum", {0.8: 0.3, 0.9: 0.2, 0.99: 0.9}, {"num_updates": 1_000}))
    judgement = verdict("momentum", tmp_path)
    assert judgement.outcome == YES
    assert [number.name for number in judgement.parts[0].numbers][:2] == [
        "momentum 0.9",
        "momentum 0.8",
    ]


def test_many_parts_do_not_make_a_contradiction_of_noise(tmp_path: Path) -> None:
    """A part that contradicts alone is not enough among eight: its interval is of 99.4 % then."""
    alone = of({"adamw": 0.3, "soap": 0.32}, spread=(0.0, 0.002, -0.002))
    noisy = [group._replace(spread=(0.0, 0.005, -0.005)) for group in alone[1:]]
    store(
        tmp_path, [alone[0], *noisy, *of({"mars": 0.4, "muon": 0.1, "normuon": 0.1, "adan": 0.1})]
    )
    parts = {part.what: part for part in verdict("order", tmp_path).parts}
    part = parts["soap less than adamw"]
    assert part.numbers[-1].high < 0
    assert part.outcome == OPEN
    assert "too little among so many parts" in part.why


def test_a_point_is_chosen_on_the_first_seeds_and_compared_on_the_others(tmp_path: Path) -> None:
    """A rate whose sync loss is higher counts for nothing, whatever its gap."""
    rates = {0.1: (2.0, 0.1), 0.2: (2.5, 0.9)}
    for size, added in ((8, 0.0), (16, 0.2)):
        for rate, (level, gap) in rates.items():
            base = [level + seed for seed in (0.0, 0.1, 0.05)]
            late = [loss + gap + added + 0.001 * seed for seed, loss in enumerate(base)]
            put(tmp_path, "sync", base, lr=rate, batch_size=size)
            put(tmp_path, "delay", late, lr=rate, batch_size=size)
    judgement = verdict("large_batches", tmp_path)
    assert judgement.outcome == YES
    small, large, difference = judgement.parts[0].numbers
    assert [small.mean, large.mean, difference.mean] == pytest.approx([0.1015, 0.3015, 0.2])


def test_a_gap_that_was_not_measured_decides_nothing() -> None:
    """Even where the other gap has several points to choose from."""
    columns = ["optimizer", "point", "seed", "value", "final_val_loss_sync"]
    rows = [("muon", point, seed, 0.1, 2.0) for point in "ab" for seed in (0, 1, 2)]
    measured = pd.DataFrame(rows, columns=columns)
    judgement = more("muon", Column("none", measured[:0]), Column("two", measured))
    assert judgement.flaw


@pytest.mark.parametrize(
    ("at_best", "at_other", "outcome", "numbers"),
    [
        ([0.1, 0.11, 0.12], [0.9, 0.9, 0.9], YES, [0.115, 0.315]),
        ([0.1, 0.11, 0.12], [0.9, inf, 0.9], YES, [0.115, 0.315]),
        ([inf, inf, inf], [0.1, 0.11, 0.12], NO, [inf, 0.315]),
        ([0.1, inf, 0.12], [0.1, 0.11, 0.12], OPEN, []),
    ],
    ids=["none", "at the other point", "everywhere at the best", "in part at the best"],
)
def test_the_best_point_is_not_left_out_because_the_arm_diverged_there(
    at_best: list[float], at_other: list[float], outcome: Outcome, numbers: list[float]
) -> None:
    """The optimizer that is to lose less has two points; sync is better at the first one."""
    rows = [
        ("muon", point, seed, value, level + 0.01 * seed)
        for point, level, values in (("a", 2.0, at_best), ("b", 2.5, at_other))
        for seed, value in enumerate(values)
    ]
    rows += [("adamw", "c", seed, value, 2.0) for seed, value in enumerate((0.3, 0.31, 0.32))]
    table = pd.DataFrame(
        rows, columns=["optimizer", "point", "seed", "value", "final_val_loss_sync"]
    )
    columns = (Column(name, table[table["optimizer"] == name]) for name in ("muon", "adamw"))
    comparison = more("muon less than adamw", *columns)
    if outcome == OPEN:
        assert "1 of 3 diverged" in comparison.flaw
        return
    assert not comparison.flaw
    code = int(comparison.rule.decide(comparison.values, 0.95))
    assert OF_CODE[code] == outcome
    assert [number.mean for number in comparison.numbers if "minus" not in number.name] == (
        pytest.approx(numbers)
    )


# An audit is repeatable, and its numbers are those of a t-test worked out by hand.


def order() -> Verdict:
    """Of the claim of the most parts, at 3 seeds; not judged yet."""
    parts = stored_parts(ORDER, 3)
    return Verdict(BY_NAME["order"], Outcome.UNDECIDED, (), comparisons=parts)


def test_an_audit_is_the_same_whenever_it_is_made() -> None:
    assert audited(order()).audit == audited(order()).audit


def test_the_seeds_that_decide_are_those_of_the_noncentral_t() -> None:
    """By hand: differences of mean 0.2 and standard deviation 0.2. The power of a t-test of one
    standard deviation is 0.8 from n = 10 on."""
    by_hand = np.array([-1.0, 0.0, 1.0]) * 0.2 + 0.2
    rows = [Row("less", pd.Series([0.0, 0.0, 0.0])), Row("more", pd.Series(by_hand))]
    made = audit([Comparison("part", rows, LARGER)], 0.95, 1)
    assert made.seeds in (9, 10, 11)
    assert 0.05 < made.decided.share < 0.8, "three seeds are too few"


def test_what_no_number_of_seeds_decides_is_said() -> None:
    rows = [Row("less", pd.Series([0.0, 0.0, 0.0])), Row("more", pd.Series([-1.0, 0.001, 1.0]))]
    assert audit([Comparison("part", rows, LARGER)], 0.95, 1).seeds is None


def test_noise_has_the_paired_spread_of_the_store() -> None:
    store = stored(LARGER, [0.1, 0.3], 5, 0)
    drawn = LARGER.draw(np.zeros(2), store.values, (20_000, 4), np.random.default_rng(0))
    difference = drawn[:, 1] - drawn[:, 0]
    assert difference.std() == pytest.approx(
        (store.values[1] - store.values[0]).std(ddof=1), rel=0.02
    )


def test_a_contradiction_by_one_of_many_parts_decides_a_claim() -> None:
    """Whichever of them it is, and though the search for seeds may leave out what comes later."""
    below = Row("more", pd.Series([-0.3, -0.2, -0.1]))
    undecided, above = pd.Series([-1.0, 0.001, 1.0]), pd.Series([1.0, 1.1, 1.2])
    less = Row("less", pd.Series([0.0, 0.0, 0.0]))
    rows = (Row("more", undecided), Row("more", above), below)
    parts = [Comparison("part", [less, row], LARGER) for row in rows]
    alone = audit([parts[-1]], 0.99, 1)
    made = [audit(several, 0.99, 1) for several in (parts, [*parts[::-1]])]
    assert alone.seeds is not None
    assert all(one.seeds is not None and abs(one.seeds - alone.seeds) <= 1 for one in made)


def test_parts_that_cannot_be_simulated_are_counted() -> None:
    whole = order()
    lost = Comparison(
        "lost", [Row("less", pd.Series([0.1])), Row("more", pd.Series([0.2]))], LARGER
    )
    made = audited(whole._replace(comparisons=[*whole.comparisons, lost])).audit
    assert made is not None
    assert made.num_left_out == 1
    assert audited(whole._replace(comparisons=[lost])).audit is None


# How often each claim's rule decides where there is nothing to decide: in at most 5 % of
# simulated stores without an effect, at 3 to 16 seeds.

SEEDS = (3, 5, 8, 16)


@pytest.mark.parametrize("n", SEEDS)
@pytest.mark.parametrize("name", PARTS)
def test_nothing_is_decided_without_an_effect(name: str, n: int) -> None:
    parts = stored_parts(PARTS[name], n)
    rates = audit(parts, against(parts), 1, STORES)
    assert rates.decided_if_placebo.share <= MOST + SLACK


@pytest.mark.parametrize("name", PARTS)
def test_a_rule_says_what_is_so_where_it_is_plain(name: str) -> None:
    """A rule that says nothing errs never: with many seeds it must speak."""
    parts = stored_parts(PARTS[name], 64)
    rates = audit(parts, against(parts), 1, 100)
    assert rates.decided.share > 0.9
    assert rates.seeds is not None
