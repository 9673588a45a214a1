"""Each claim of the paper is judged by its rule: reproduced, contradicted, not enough data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from analysis import load
from analysis.claims import CLAIMS, Outcome, Verdict, judged, not_run
from analysis.claims.measure import Column, more
from tests.support.synthetic_store import config, put, result, write

YES, NO, OPEN = Outcome.REPRODUCED, Outcome.CONTRADICTED, Outcome.UNDECIDED
SYNC = (2.0, 2.1, 1.9, 2.05, 1.95, 2.02)
SPREAD = (0.0, 0.002, -0.002)
"""Of a gap over the seeds: its interval is ± 0.005."""
WIDE = (0.0, 0.4, -0.4)
SIX = (0.0, 0.002, -0.002, 0.001, -0.001, 0.0)
BY_NAME = {claim.name: claim for claim in CLAIMS}
CORRECTIONS = {
    "ef": "trainer.corrections.error_feedback.ErrorFeedback",
    "taylor": "trainer.corrections.taylor.Taylor",
    "ef_gradient": "trainer.corrections.error_feedback_gradient.GradientErrorFeedback",
}


class Group(NamedTuple):
    """The trials of an arm beside sync: `gap` None diverges; `pipeline`, `keys` change configs."""

    gap: float | None
    optimizer: str = "adamw"
    correction: str = ""
    coefficient: float = 1.0
    pipeline: Mapping[str, Any] = {}
    keys: Mapping[str, Any] = {}
    spread: Sequence[float] = SPREAD
    spike: float = 0.0


def store(folder: Path, groups: Iterable[Group], num_updates: int = 400) -> None:
    for group in groups:
        for seed, (sync, noise) in enumerate(zip(SYNC, group.spread, strict=False)):
            base = config("sync", optimizer=group.optimizer, seed=seed)
            late = config("delay", optimizer=group.optimizer, seed=seed)
            for settings in (base, late):
                for key, value in group.keys.items():
                    (settings if key in settings else settings["optimizer"])[key] = value
                settings["num_updates"] = group.keys.get("num_updates", num_updates)
            late["pipeline"] |= group.pipeline
            if group.correction:
                late["correction"] = {
                    "_target_": CORRECTIONS[group.correction],
                    "coefficient": group.coefficient,
                }
            done = {"num_updates": base["num_updates"], "tokens": 2048 * base["num_updates"]}
            _write_losses(write(folder, base, result(base, sync, **done)), late, 0.0)
            loss = None if group.gap is None else sync + group.gap + noise
            trial = write(folder, late, result(late, loss, **done))
            _write_losses(trial, late, group.spike + noise)


def _write_losses(trial: Path, late: Mapping[str, Any], spike: float) -> None:
    start = late["pipeline"].get("synchronous_start")
    if start:
        losses = [2.0 + spike * (update >= start) for update in range(60)]
        rows = [{"update": t, "train_loss": loss} for t, loss in enumerate(losses)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (trial / "metrics.jsonl").write_text(text)


def verdict(name: str, folder: Path) -> Verdict:
    trials = load(folder)
    return judged(BY_NAME[name], trials)


def of(gap_by_optimizer: Mapping[str, float], **changes: Any) -> list[Group]:
    return [Group(gap, optimizer, **changes) for optimizer, gap in gap_by_optimizer.items()]


def feedback(plain: float, left: float, **changes: Any) -> list[Group]:
    return [Group(plain, **changes), Group(left, correction="ef", **changes)]


def coefficients(
    correction: str, gap_by_value: Mapping[float, float | None], **changes: Any
) -> list[Group]:
    arms = [Group(gap, "muon", correction, value, **changes) for value, gap in gap_by_value.items()]
    return [Group(0.4, "muon", **changes), *arms]


def swept(
    key: str, gap_by_value: Mapping[Any, float], others: Mapping[str, Any] = {}, **changes: Any
) -> list[Group]:
    return [
        Group(gap, keys={key: value, **others}, **changes) for value, gap in gap_by_value.items()
    ]


def depths(gap_by_depth: Mapping[int, float], **changes: Any) -> list[Group]:
    original = {"_target_": "trainer.schedules.pipedream"}
    return [
        Group(gap, pipeline={**original, "num_stages": p}, **changes)
        for p, gap in gap_by_depth.items()
    ]


def starts(spike_by_decay: Mapping[float, float], **changes: Any) -> list[Group]:
    return [
        Group(0.1, pipeline=STARTED, keys={"variance_decay": decay}, spike=spike, **changes)
        for decay, spike in spike_by_decay.items()
    ]


LONG = {"num_updates": 10_000}
STARTED = {"synchronous_start": 20}
ROBUST = {"muon": 0.1, "normuon": 0.1, "soap": 0.1, "adan": 0.1}
COOLED = {"synchronous_cooldown": 0.1}
CASES: dict[str, dict[Outcome, list[Group]]] = {
    "delay_costs": {YES: [Group(0.1)], NO: [Group(-0.1)], OPEN: [Group(0.1, spread=WIDE)]},
    "adamw_over_muon": {
        YES: of({"adamw": 0.3, "muon": 0.1}),
        NO: of({"adamw": 0.1, "muon": 0.3}),
        OPEN: of({"adamw": 0.3}),
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
    "horizon": {
        YES: feedback(0.1, 0.0, keys={"num_updates": 800}),
        NO: feedback(0.1, 0.05, keys={"num_updates": 800}),
        OPEN: feedback(0.0, 0.0, keys={"num_updates": 800}),
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
    found = verdict(name, tmp_path)
    assert found.outcome == outcome, found
    if outcome != OPEN:
        assert all(part.numbers for part in found.parts)
    else:
        assert any(part.why for part in found.parts)


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


@pytest.mark.parametrize("name", BY_NAME)
def test_trials_that_say_nothing_of_a_claim(name: str, tmp_path: Path) -> None:
    """A sweep of which only sync is done, or nothing at all."""
    settings = config("sync")
    write(tmp_path, settings, result(settings, 2.0))
    found = verdict(name, tmp_path)
    assert found.outcome == OPEN
    assert all(part.why for part in found.parts)
    trials = load(tmp_path)[:0]
    assert judged(BY_NAME[name], trials).outcome == OPEN


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    store(tmp_path, of({"adamw": 0.3, **ROBUST}))
    whys = {part.what: part.why for part in verdict("order", tmp_path).parts}
    assert whys["muon less than mars"] == "mars is missing"
    assert whys["muon less than adamw"] == ""


def test_an_arm_that_diverged_everywhere_lost_and_one_that_did_in_part_decides_nothing(
    tmp_path: Path,
) -> None:
    store(tmp_path / "all", [Group(None), Group(0.1, "muon")])
    found = verdict("adamw_over_muon", tmp_path / "all")
    assert found.outcome == YES
    assert "adamw diverged at 3 of 3" in [str(number) for number in found.parts[0].numbers]
    store(tmp_path / "part", [Group(0.3), Group(0.1, "muon")])
    path = next(
        p.parent
        for p in (tmp_path / "part").rglob("config.json")
        if "2bw" in p.read_text() and "adamw" in p.read_text()
    )
    settings = json.loads((path / "config.json").read_text())
    lost = {"trial_id": path.name, **result(settings, None)}
    (path / "result.json").write_text(json.dumps(lost))
    found = verdict("adamw_over_muon", tmp_path / "part")
    assert found.outcome == OPEN
    assert "adamw: 1 of 3 diverged" in found.parts[0].why


def test_a_claim_that_was_never_run_says_how() -> None:
    claim = BY_NAME["momentum"]
    found = not_run(claim, "python -m sweeps sweep=momentum scale=tiny results=r")
    assert found.outcome == OPEN
    assert "python -m sweeps sweep=momentum scale=tiny" in found.parts[0].why


def test_a_difference_that_two_intervals_cannot_tell_is_decided_by_pairs(tmp_path: Path) -> None:
    """Seeds that move both gaps alike: each interval is 0.5 wide, their difference has none."""
    groups = [Group(0.4, spread=WIDE), Group(0.3, spread=WIDE, pipeline=COOLED)]
    store(tmp_path, groups)
    found = verdict("cooldown", tmp_path)
    assert found.outcome == YES
    arm, base, difference = found.parts[0].numbers
    assert arm.high > base.low
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))


def test_only_the_papers_optimizers_judge_it_and_others_have_their_own_line(tmp_path: Path) -> None:
    store(tmp_path, [*feedback(0.4, 0.1), *feedback(0.3, 0.4, optimizer="nadamw")])
    for name in ("ef_helps", "ef_most"):
        found = verdict(name, tmp_path)
        assert found.outcome == YES
        assert [part.what for part in found.parts] == ["adamw"]
        assert [(part.what, part.outcome) for part in found.others] == [("nadamw", NO)]


def test_half_of_the_gap_that_is_left_is_no_sync_however_wide_its_interval(tmp_path: Path) -> None:
    """The interval of what is left holds 0: that is no sign of equality."""
    store(tmp_path, [Group(0.1), Group(0.05, correction="ef", spread=(0.0, 0.03, -0.03))])
    found = verdict("horizon", tmp_path)
    assert found.parts[0].numbers[1].low < 0
    assert found.outcome == OPEN


def test_the_best_at_the_edge_of_the_grid_decides_nothing(tmp_path: Path) -> None:
    store(tmp_path, coefficients("ef", {0.5: 0.2, 1.0: 0.1, 1.25: 0.098}))
    found = verdict("coefficient", tmp_path)
    assert found.outcome == OPEN
    assert "edge of the grid" in found.parts[0].why


@pytest.mark.parametrize(("updates", "says"), [(9_999, OPEN), (10_000, YES)])
def test_a_momentum_needs_a_run_that_is_long_beside_its_memory(
    updates: int, says: Outcome, tmp_path: Path
) -> None:
    long = {"num_updates": updates}
    store(tmp_path, swept("momentum", {0.95: 0.3, 0.99: 0.1}, long))
    assert verdict("momentum", tmp_path).outcome == says


def test_short_momenta_are_judged_where_long_ones_cannot_be(tmp_path: Path) -> None:
    store(tmp_path, swept("momentum", {0.8: 0.3, 0.9: 0.2, 0.99: 0.9}, {"num_updates": 1_000}))
    found = verdict("momentum", tmp_path)
    assert found.outcome == YES
    assert [number.name for number in found.parts[0].numbers][:2] == [
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
    found = {part.what: part for part in verdict("order", tmp_path).parts}
    part = found["soap less than adamw"]
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
    found = verdict("large_batches", tmp_path)
    assert found.outcome == YES
    small, large, difference = found.parts[0].numbers
    assert [small.mean, large.mean, difference.mean] == pytest.approx([0.1015, 0.3015, 0.2])


def test_a_gap_that_was_not_measured_decides_nothing() -> None:
    """Even where the other gap has several points to choose from."""
    columns = ["optimizer", "point", "seed", "value", "final_val_loss_sync"]
    rows = [("muon", point, seed, 0.1, 2.0) for point in "ab" for seed in (0, 1, 2)]
    measured = pd.DataFrame(rows, columns=columns)
    found = more("muon", Column("none", measured[:0]), Column("two", measured))
    assert found.flaw
