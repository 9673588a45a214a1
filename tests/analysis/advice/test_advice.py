"""Each verdict follows from its rule, on stores and pipelines worked out by hand."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import advise, load
from analysis.advice import Advice, Costs
from analysis.advice.evidence import Evidence, Gap
from analysis.advice.race import after, same_time
from analysis.advice.speed import (
    FLUSHED,
    SETTLED,
    TWO_BUFFERED,
    equal_stages,
    fastest,
    flushed_speeds,
    speed,
    speed_up,
    speed_up_over_fastest,
)
from analysis.advice.verdict import GO, STAY, UNDECIDED, verdict
from analysis.statistics.intervals import mean_interval
from analysis.statistics.tax import Tax
from analysis.table.records import Asked, Record
from tests.support.synthetic_store import config, result, write
from trainer.base.errors import BadInput
from trainer.schedules.simulate import simulate

STAGES, MICROBATCHES = st.integers(1, 6), st.integers(1, 8)


def add(
    store: Path, arm: str, losses: list[float | None], updates: int = 400, **correction: float
) -> None:
    """One trial per seed; its validation loss falls by 2 nats in a straight line over the run."""
    for seed, loss in enumerate(losses):
        trial = config(arm, seed=seed) | {"num_updates": updates}
        trial["correction"] |= correction
        changes = {} if loss is None else {"num_updates": updates}
        write(store, trial, result(trial, loss, **changes), curve=True)


def ask(store: Path, stages: int = 4, microbatches: int = 8, **more: Any) -> Advice:
    more = {"optimizer": "adamw", "stages": stages, "microbatches": microbatches} | more
    return advise(load(store), **more)


# The pipeline


@settings(max_examples=40)
@given(p=STAGES, m=MICROBATCHES)
def test_equal_stages_gain_the_bubble(p: int, m: int) -> None:
    """1F1B idles (p − 1) forwards and backwards a batch; ZB-H1 a third of that, if m ≥ p; ZB-V half
    of this again, if m ≥ 2p − 1. Interleaved 1F1B has half of 1F1B's, and keeps more."""
    m = max(m, p)
    of = {name: speed_up(name, equal_stages(p), m) for name in ("1F1B", "ZB-H1")}
    assert of["1F1B"] == pytest.approx(1 / (1 - (p - 1) / (m + p - 1)))
    assert of["ZB-H1"] == pytest.approx((3 * m + p - 1) / (3 * m))
    m = max(2 * p, m - m % p)
    found = flushed_speeds(equal_stages(p), m)
    assert found["ZB-V"].batch_time == pytest.approx(3 * m + (p - 1) / 2)
    assert found["interleaved 1F1B"].batch_time == pytest.approx(3 * (m + (p - 1) / 2))
    assert found["interleaved 1F1B"].activations == (3 * p - 1) / 2
    assert {found[name].activations for name in ("1F1B", "ZB-H1", "ZB-V")} == {p}
    assert speed(TWO_BUFFERED, equal_stages(p), m).activations == p


def test_the_rival_is_the_fastest_that_keeps_no_more() -> None:
    """A forward of 8 and halves of 1: where the halves fill little, more chunks gain most."""
    costs = Costs((8.0,) * 4, (2.0,) * 4)
    found = flushed_speeds(costs, 8)
    times = {name: at.batch_time for name, at in found.items()}
    assert min(times, key=lambda name: times[name]) == "interleaved 1F1B"
    assert fastest(found, 4) == "ZB-V"
    assert fastest(found, 5.5) == "interleaved 1F1B"
    assert speed_up_over_fastest(costs, 8) == pytest.approx(times["ZB-V"] / (8 * 10))
    with pytest.raises(BadInput, match="activations=3: must be 4 or more"):
        fastest(found, 3)
    assert set(flushed_speeds(costs, 6)) == {*FLUSHED} - {"interleaved 1F1B"}


def test_the_slowest_stage_sets_the_pace_of_2bw() -> None:
    costs = Costs((1.0, 3.0, 2.0), (2.0, 6.0, 4.0))
    assert speed(TWO_BUFFERED, costs, 4).batch_time == pytest.approx(4 * 9)


def test_a_rank_with_several_chunks_does_the_work_of_one_with_one() -> None:
    """Alone it is never idle, whatever the schedule; an update counts once."""
    found = flushed_speeds(Costs((3.0,), (5.0,), update=0.5), 4)
    assert {name: at.batch_time for name, at in found.items()} == pytest.approx(
        dict.fromkeys(FLUSHED, 4 * 8 + 0.5)
    )


def test_the_steady_state_is_reached_whatever_a_message_and_an_update_take() -> None:
    costs = Costs((1.0, 2.0, 1.0, 1.0), (2.0, 4.0, 3.0, 2.0), update=0.7, communication=0.9)
    schedule = TWO_BUFFERED(40, num_stages=4, num_microbatches=5)
    by_rank = [
        {"F": f, "B": b, "U": 0.7} for f, b in zip(costs.forward, costs.backward, strict=True)
    ]
    spans = [simulate(schedule.operations(0, k), by_rank, 0.9).makespan for k in (20, 40)]
    assert speed(TWO_BUFFERED, costs, 5).batch_time == pytest.approx((spans[1] - spans[0]) / 20)
    assert SETTLED < 20


# The loss


def test_faster_and_no_worse_in_the_same_time_is_a_go(tmp_path: Path) -> None:
    """425 updates in the time of 400: between runs of 400 and 450, in logarithms, on a line that
    lies above what runs of 425 would give."""
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    add(tmp_path, "delay", [1.02, 1.03, 1.05])
    add(tmp_path, "delay", [0.92, 0.93, 0.94], updates=450)
    found = ask(tmp_path)
    at = found.same_time["ZB-V"]
    share = np.log(425 / 400) / np.log(450 / 400)
    gaps = np.array([0.02, 0.02, 0.03]) + share * np.array([-0.10, -0.10, -0.11])
    expected = stats.ttest_1samp(gaps, 0).confidence_interval(0.95)
    assert found.verdict.word == found.verdicts["ZB-V"].word == GO
    assert (at.updates, at.n, at.gap) == pytest.approx((425, 3, gaps.mean()))
    assert at.interval == pytest.approx((expected.low, expected.high))
    # Sync's losses lie 2/10, 2/10 and 3/11 of the way from the delayed ones at 400 to 450.
    assert found.gap is not None
    tax = (450 / 400) ** np.mean([2 / 10, 2 / 10, 3 / 11])
    assert found.gap.tax.tax == pytest.approx(tax)
    # 550 updates were not run, and are not extrapolated; but 1F1B is slower than ZB-V.
    assert np.isnan(found.same_time["1F1B"].gap)
    assert found.verdicts["1F1B"].word == GO


def test_slower_to_the_same_loss_is_a_stay(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    add(tmp_path, "delay", [1.30, 1.32, 1.32])
    add(tmp_path, "delay", [1.20, 1.21, 1.22], updates=425)
    found = ask(tmp_path)
    assert found.verdict.word == STAY
    assert found.same_time["ZB-V"].gap == pytest.approx(0.2)
    assert "not enough data: above 1.06: no delayed run ends as low as sync" in str(found)


def test_an_interpolation_decides_nothing_in_favour_of_the_side_that_it_flatters(
    tmp_path: Path,
) -> None:
    """The same gap at the same time, on a line between runs of other lengths on either side."""
    stay, go = tmp_path / "stay", tmp_path / "go"
    for store, low, high in ((stay, 1.20, 1.0), (go, 3.0, 1.0)):
        add(store, "sync", [low, low + 0.01, low + 0.02], updates=200)
        add(store, "sync", [high, high + 0.01, high + 0.02])
        add(store, "delay", [1.10, 1.12, 1.13])
    # Sync after 400 / 1.0625 updates by hand: 1.20 and 3.0 less 0.9125 of the way to 1.0.
    by_hand = 1.1167 - (1.21 - 0.9125 * 0.2)
    assert ask(stay).same_time["ZB-V"].gap == pytest.approx(by_hand, abs=1e-3)
    assert ask(stay).verdict.word == STAY  # sync's true loss is lower still
    lower = ask(go, updates=400).same_time["ZB-V"]
    assert lower.interval[1] < 0
    assert ask(go, updates=400).verdict.word == UNDECIDED
    assert ask(go, updates=400).verdict.settle["num_updates"] == 425


def test_sync_runs_of_the_same_time_compare_as_well(tmp_path: Path) -> None:
    """To what a sync run of 376 updates reaches, the delayed one has time for 400."""
    add(tmp_path, "sync", [1.0, 1.01, 1.02])
    add(tmp_path, "sync", [1.2, 1.21, 1.22], updates=376)
    add(tmp_path, "delay", [1.10, 1.12, 1.13])
    found = ask(tmp_path)
    at = found.same_time["ZB-V"]
    assert (at.updates, at.sync_updates) == pytest.approx((400, 400 / 1.0625))
    assert at.lengths == [376, 400]
    assert found.verdict.word == GO
    assert found.gap is not None
    assert found.gap.tax.tax_from == "slope"


def test_an_interval_that_holds_zero_asks_for_seeds(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    add(tmp_path, "delay", [1.05, 1.05, 1.05])
    add(tmp_path, "delay", [0.94, 0.97, 1.01], updates=425)
    found = ask(tmp_path)
    assert found.verdict.word == UNDECIDED
    # Differences of −0.06, −0.04, −0.01: t(0.975, 4) = 2.776 times 0.0252 / √5 is 0.031 < 0.0367,
    # t(0.975, 3) = 3.182 times 0.0252 / √4 is 0.040.
    assert found.verdict.settle["seeds"] == [0, 1, 2, 3, 4]
    assert found.verdict.settle["grid.num_updates"] == [400, 425]
    assert "run more of these trials: num_updates=[400, 425], seeds=[0, 1, 2, 3, 4]" in str(found)


def test_without_longer_runs_a_small_gap_is_not_decided(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    add(tmp_path, "delay", [1.02, 1.04, 1.05])
    found = ask(tmp_path)
    assert found.verdict.word == UNDECIDED
    assert found.verdict.settle["num_updates"] == 425
    assert "num_updates=425" in str(found)


def test_the_tax_stands_against_each_speed_up(tmp_path: Path) -> None:
    """Delayed runs of 400, 450 and 640 updates end 0.12, 0.03 and -0.1 from sync's 400: by hand a
    tax between the last two. It is above the 1.125 of ZB-H1 and below the 1.375 of 1F1B."""
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    for updates, gap in ((400, 0.12), (450, 0.03), (640, -0.1)):
        add(tmp_path, "delay", [1.0 + gap, 1.01 + gap, 1.021 + gap], updates=updates)
    found = ask(tmp_path, updates=400)
    assert found.gap is not None
    tax = 450 / 400 * (640 / 450) ** (3 / 13)
    assert found.gap.tax.tax == pytest.approx(tax, rel=1e-3)
    assert f"{tax:.2f} [" in str(found)
    assert "the speed-up over 1F1B: the tax is lower" in str(found)
    assert "the speed-up over ZB-H1: the tax is higher" in str(found)
    thin = tmp_path / "thin"
    for seed in (0, 1):
        add(thin, "sync", [1.0 + seed / 100])
    assert "token tax" not in str(ask(thin))


def test_an_uncertain_tax_decides_nothing(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.00, 1.01, 1.02])
    for updates, level in ((400, 1.1), (450, 1.02), (640, 0.9)):
        add(tmp_path, "delay", [level, level + 0.05, level - 0.02], updates=updates)
    assert "the speed-up over ZB-H1: not shown to be lower or higher" in str(
        ask(tmp_path, updates=400)
    )


def test_runs_of_one_length_have_no_tax(tmp_path: Path) -> None:
    """Whatever the loss was in the middle of a run: its learning rate had not decayed yet."""
    add(tmp_path, "sync", [1.0, 1.1, 1.2])
    add(tmp_path, "delay", [1.4, 1.5, 1.6])
    found = ask(tmp_path)
    assert "not enough data: runs of one length only" in str(found)
    assert found.verdict.word == UNDECIDED


def test_a_gap_below_zero_is_a_go(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.0, 1.0, 1.0])
    add(tmp_path, "delay", [0.9, 0.9, 0.9])
    found = ask(tmp_path)
    assert found.verdict.word == GO


def test_a_pipeline_without_a_bubble_gains_nothing(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.0, 1.0, 1.0])
    add(tmp_path, "delay", [0.9, 0.9, 0.9])
    assert ask(tmp_path, stages=1).verdict.word == STAY


def test_a_delay_that_diverged_alone_is_a_stay(tmp_path: Path) -> None:
    add(tmp_path, "sync", [1.0, 1.0, 1.0])
    add(tmp_path, "delay", [0.9, None, 0.9])
    found = ask(tmp_path)
    assert found.verdict.word == STAY
    assert "delay in 1 of 3" in found.verdict.why


@pytest.mark.parametrize("losses", [{"sync": [1.0], "delay": [0.5]}, {"sync": [1.0, 1.0]}, {}])
def test_fewer_than_two_pairs_decide_nothing(tmp_path: Path, losses: dict[str, Any]) -> None:
    write(tmp_path, config("sync", seed=9), None)
    for arm, of_seeds in losses.items():
        add(tmp_path, arm, of_seeds)
    found = ask(tmp_path)
    assert found.verdict.word == UNDECIDED
    assert "run more of these trials: seeds=[0, 1, 2]" in str(found)


# The coefficient of Error Feedback


@pytest.mark.parametrize(
    ("feedback", "chosen"),
    [
        ({0.5: [1.2, 1.22, 1.2], 1.0: [1.1, 1.12, 1.1]}, 1.0),
        ({0.5: [1.1, 1.12, 1.1], 1.0: [1.2, 1.22, 1.2]}, 0.5),
        ({1.0: [1.0, 1.6, 1.1]}, 0.0),  # removes a share whose interval holds 0
        ({0.5: [1.2, 1.22, 1.2], 1.0: [1.1, 1.1, None]}, 0.5),
        ({}, 0.0),
    ],
    ids=["1", "a half", "not shown", "1 diverged", "none"],
)
def test_the_coefficient_of_the_smallest_gap_that_is_shown_to_help(
    tmp_path: Path, feedback: dict[float, list[float | None]], chosen: float
) -> None:
    add(tmp_path, "sync", [1.0, 1.01, 1.0])
    add(tmp_path, "delay", [1.4, 1.42, 1.41])
    for coefficient, losses in feedback.items():
        add(tmp_path, "delay_ef", losses, coefficient=coefficient)
    found = ask(tmp_path)
    assert found.gap is not None
    assert found.gap.coefficient == chosen
    said = "not enough data" if chosen == 0 else f"{chosen:g} (smallest mean gap"
    assert f"λ of Error Feedback: {said}" in str(found)


# How often it errs


def wrong(found: Evidence, arms: list[str], speed_up: float) -> bool:
    at = same_time(found, arms, speed_up)
    equal = after(found, arms, found.updates, found.updates)
    return verdict(equal, at, speed_up, found.updates).word == GO


def evidence_of(losses: Any, sync: Any, shorter: Any) -> Evidence:
    """Runs of 400 updates of several arms, and sync runs of 400 and 350; one loss per seed."""
    arms = [f"arm{index}" for index in range(len(losses))]
    pair = enumerate(zip(sync, shorter, strict=True))
    finals = {"sync": {seed: {400: long, 350: short} for seed, (long, short) in pair}}
    for arm, of_arm in zip(arms, losses, strict=True):
        finals[arm] = {seed: {400: loss, 450: loss} for seed, loss in enumerate(of_arm)}
    gaps = tuple(
        Gap(float(i), arm, len(sync), 0.0, (0.0, 0.0), 0, len(sync), 0.0, (0.0, 0.0), Tax())
        for i, arm in enumerate(arms)
    )
    return Evidence("", {}, 400, 0.0, gaps, finals)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("num_arms", [1, 7])
def test_a_delay_that_gains_nothing_is_a_go_in_at_most_5_percent(n: int, num_arms: int) -> None:
    """Runs that take the same time end at the same loss, and all λ are alike. The old rule chose
    the λ on the seeds compared, and took the more decisive of two comparisons."""
    rng, draws = np.random.default_rng([n, num_arms]), 400
    says, said = 0, 0
    for _ in range(draws):
        common = rng.normal(0, 0.02, n)
        losses, shorter, sync = (
            common + rng.normal(0, 0.01, (count, n)) for count in (num_arms, 1, 1)
        )
        found = evidence_of(losses, sync[0] - 0.1, shorter[0])  # 400 updates of sync: 0.1 lower
        for by_seed in (found.finals[gap.arm] for gap in found.gaps):
            for seed, loss in enumerate(rng.normal(0, 0.01, n) - 0.1 + common):
                by_seed[seed][450] = loss
        says += wrong(found, [gap.arm for gap in found.gaps], 450 / 400)
        best = losses[losses.mean(axis=1).argmin()]
        longer = np.array([found.finals["arm0"][seed][450] for seed in range(n)]) - (sync[0] - 0.1)
        ends = [mean_interval(gaps)[1] for gaps in (best - shorter[0], longer)]
        said += min(ends) < 0
    slack = 3 * np.sqrt(0.05 * 0.95 / draws)
    assert says / draws <= 0.05 + slack
    if num_arms == 7:
        assert said / draws > 0.05 + slack


def test_which_comparison_is_made_does_not_depend_on_its_losses(tmp_path: Path) -> None:
    """Both are there; the delayed runs that are longer count, though the others would say go."""
    found = evidence_of([[1.0, 1.1, 1.2]], [1.0, 1.1, 1.2], [1.5, 1.6, 1.7])
    at = same_time(found, ["arm0"], 450 / 400)
    assert (at.updates, at.sync_updates) == (450, 400)
    assert at.gap == 0


def test_each_seed_is_compared_at_the_arm_that_is_best_on_the_others() -> None:
    found = evidence_of([[1.0, 1.0, 4.0], [2.0, 2.0, 2.0]], [0.0] * 3, [0.0] * 3)
    at = after(found, ["arm0", "arm1"], 400, 400)
    # Seeds 1, 2 have 2.5 and 2: arm1; likewise 0, 2; seeds 0 and 1 choose arm0, which has 4.
    assert at.gap == pytest.approx(np.mean([2.0, 2.0, 4.0]))
    plain = stats.ttest_1samp([2.0, 2.0, 4.0], 0).confidence_interval(0.95)
    half = np.sqrt(1 + 3 / 2) * (plain.high - plain.low) / 2
    assert at.interval == pytest.approx((at.gap - half, at.gap + half))


# Which trials


def test_the_longest_training_that_can_be_decided_is_shown(tmp_path: Path) -> None:
    for updates, level in ((200, 2.0), (400, 1.0)):
        add(tmp_path, "sync", [level, level + 0.01], updates=updates)
        add(tmp_path, "delay", [level + 0.02, level + 0.03], updates=updates)
    decided = ask(tmp_path).evidence
    assert decided is not None
    assert decided.updates == 200  # 212.5 updates lie between 200 and 400, and end lower
    longest = ask(tmp_path, updates=400)
    assert longest.evidence is not None
    assert (longest.evidence.updates, longest.verdict.word) == (400, UNDECIDED)
    with pytest.raises(BadInput, match=r"updates=300: .*\(400, 200\)"):
        ask(tmp_path, updates=300)


def test_the_command_repeats_a_setting_whose_key_is_null(tmp_path: Path) -> None:
    for clip_norm, loss in ((1.0, 2.0), (None, 1.9)):
        for arm in ("sync", "delay"):
            trial = config(arm) | {"clip_norm": clip_norm}
            write(tmp_path, trial, result(trial, loss), curve=True)
    found = ask(tmp_path)
    assert found.evidence is not None
    assert found.evidence.keys == {"clip_norm": None}
    words = ("sweep=main", "scale=micro", "data=gcide", "seeds=[7]", "dry_run=true")
    ids = found.evidence.trials
    made = Record(
        *("main", "micro", "main-micro", words, "", (), (0,), True, (), frozenset(ids)),
        trials={name: Asked("sync", 0, None, None, None) for name in ids},
    )
    assert ask(tmp_path, records=[replace(made, trials={})]).command == ""
    told = ask(tmp_path, records=[replace(made, trials={}), made])
    assert shlex.split(told.command) == [
        *("python", "-m", "sweeps", "sweep=main", "scale=micro", "grid.optimizer=[adamw]"),
        *("data=gcide", "clip_norm=null", "seeds=[0,1,2]", "advice=null"),
    ]
    assert f"to settle it: {told.command}" in str(told)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"optimizer": "muon"}, r"optimizer=muon: .*\(adamw\)"),
        ({"microbatches": 2}, r"microbatches=2: .*at least stages - 1 = 3"),
        ({"stages": 0}, "stages=0: must be 1 or more"),
        ({"microbatches": 10**6}, "microbatches=1000000: must be 4096 at most"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    add(tmp_path, "sync", [1.0])
    with pytest.raises(BadInput, match=message):
        ask(tmp_path, **asked)
