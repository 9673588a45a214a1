"""What may decide a claim: pairs of the paper's own trials, and nothing that noise would show."""

import json
from math import inf
from pathlib import Path

import pandas as pd
import pytest

from pipegap.analysis.claims import Outcome
from pipegap.analysis.claims.claim import OF_CODE
from pipegap.analysis.claims.measure import Column, more
from tests.support.claim_stores import (
    COOLED,
    NO,
    OPEN,
    ROBUST,
    WIDE,
    YES,
    Group,
    coefficients,
    feedback,
    of,
    store,
    swept,
    verdict,
)
from tests.support.synthetic_store import put, result


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
        assert [(part.what, part.outcome) for part in judgement.others] == [("nadamw", NO)]


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
