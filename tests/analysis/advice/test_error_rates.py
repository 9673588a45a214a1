"""How often an advice errs where the delay gains nothing, and what keeps it from erring."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipegap.analysis.advice.evidence import Evidence, Gap
from pipegap.analysis.advice.race import optimistic, pessimistic
from pipegap.analysis.advice.timing import Ratio, ratio
from pipegap.analysis.advice.verdict import GO, STAY, UNDECIDED, candidates, decide
from pipegap.analysis.statistics.tax import Tax
from tests.support.simulated_advice import Kind, kinds, public_verdict, rate, verdict

DAILY = {
    *(Kind("main", num_lengths, 1, 3) for num_lengths in (1, 5)),
    *(Kind("main", 3, 2, 5), Kind("ladder", 5, 1, 8), Kind("measured", 5, 1, 3)),
    *(Kind("measured", 2, 2, 8), Kind("main", 1, 1, 8, num_settings=5)),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in DAILY else pytest.mark.slow, id=str(kind))
        for kind in kinds()
    ],
)
def test_go_and_stay_together_err_in_at_most_5_percent(kind: Kind) -> None:
    """However many lengths of training, arms and settings there are to choose from."""
    draws = 1_500 if kind.num_settings > 1 else 600
    assert rate(kind, draws).share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["main", "measured"])
def test_the_call_of_users_errs_as_seldom(shape: str) -> None:
    """Where the first length that decides counted, it said go or stay in 28 % of such stores."""
    rate_of_calls = rate(Kind(shape, 5, 1, 3), 120, public=True)
    assert rate_of_calls.share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)


@pytest.mark.parametrize(
    "kind", [Kind("main", 3, 1, 3), Kind("ladder", 2, 2, 3), Kind("measured", 2, 1, 3, 2)], ids=str
)
def test_the_call_of_users_says_what_is_simulated(kind: Kind) -> None:
    """Of stores in which the delay gains, loses and does neither, every run of one of them alone
    at the longest length or at the shortest one."""
    rng, words = np.random.default_rng(0), []
    for side, index in ((-1, -1), (1, -1), (-1, 0), (1, 0), (0, 0)):
        losses = kind.draw(rng)
        for setting in losses:
            for arm in kind.arms:
                for length in (kind.lengths[index], kind.lengths[index - 1]):
                    setting[arm][length] = setting[arm][length] + 0.2 * side
        words.append(verdict(kind, losses))
        assert public_verdict(kind, losses) == words[-1]
    assert {GO, UNDECIDED} <= {*words}


def exact(speed_up: float) -> Ratio:
    return Ratio(speed_up, speed_up, speed_up)


def wrong(evidence: Evidence, speed_up: float) -> bool:
    arms = [gap.arm for gap in candidates(evidence, [speed_up])]
    if not arms:
        return False
    return decide(evidence, arms, exact(speed_up), speed_up)[0].word == GO


def evidence_of(losses: Any, sync: Any, shorter: Any) -> Evidence:
    """Runs of 400 updates of several arms, and sync runs of 400 and 350; one loss per seed."""
    arms = [f"arm{index}" for index in range(len(losses))]
    pair = enumerate(zip(sync, shorter, strict=True))
    finals = {"sync": {seed: {400: long, 350: short} for seed, (long, short) in pair}}
    for arm, of_arm in zip(arms, losses, strict=True):
        finals[arm] = {seed: {400: loss, 450: loss} for seed, loss in enumerate(of_arm)}
    gaps = tuple(
        Gap(float(i), arm, len(sync), 0.0, (0.0, 0.0), 0, len(sync), False, 0.0, (0.0, 0.0), Tax())
        for i, arm in enumerate(arms)
    )
    return Evidence("", {}, 400, 0.0, gaps, finals)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("num_arms", [1, 7])
def test_a_delay_that_gains_nothing_is_a_go_in_at_most_5_percent(n: int, num_arms: int) -> None:
    """Runs that take the same time end at the same loss, and all λ are alike."""
    rng, draws = np.random.default_rng([n, num_arms]), 400
    num_wrong = 0
    for _ in range(draws):
        common = rng.normal(0, 0.02, n)
        losses, shorter, sync = (
            common + rng.normal(0, 0.01, (count, n)) for count in (num_arms, 1, 1)
        )
        evidence = evidence_of(losses, sync[0] - 0.1, shorter[0])  # 400 updates of sync: 0.1 lower
        for by_seed in (evidence.finals[gap.arm] for gap in evidence.gaps):
            for seed, loss in enumerate(rng.normal(0, 0.01, n) - 0.1 + common):
                by_seed[seed][450] = loss
        num_wrong += wrong(evidence, 450 / 400)
    assert num_wrong / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


LAWS: Mapping[str, Callable[[float], float]] = {
    "power with a floor": lambda t: 1.2 + 0.9 * (t / 2000) ** -0.22,
    "power": lambda t: 2 * (t / 2000) ** -0.1,
    "exponential": lambda t: 1.2 + np.exp(-t / 3000),
    "logarithm": lambda t: 2 - 0.3 * np.log(t / 2000),
    "line": lambda t: 2 - 0.15 * t / 2000,
}
"""Final losses by length, all convex in it; the exponential one is concave in its logarithm."""
UPDATES, LONGER = 2000, 2750


def runs_of_two_lengths(
    law: Callable[[float], float], tax: float, noise: float, n: int, rng: np.random.Generator
) -> Evidence:
    """Sync at UPDATES, and delayed runs that need `tax` times its updates, also at LONGER."""
    common = rng.normal(0, 0.02, n)
    sync, short, longer = common + rng.normal(0, noise, (3, n))
    evidence = evidence_of([short], sync, sync)
    evidence = replace(evidence, updates=UPDATES)
    evidence.finals["sync"] = {seed: {UPDATES: law(UPDATES) + sync[seed]} for seed in range(n)}
    evidence.finals["arm0"] = {
        seed: {UPDATES: law(UPDATES / tax) + short[seed], LONGER: law(LONGER / tax) + longer[seed]}
        for seed in range(n)
    }
    return evidence


@pytest.mark.parametrize("noise", [0.001, 0.01])
@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("law", LAWS.values(), ids=[*LAWS])
def test_an_interpolation_decides_wrongly_in_at_most_5_percent(
    law: Callable[[float], float], n: int, noise: float
) -> None:
    """The tax is the speed-up: in the same time both sides end at the same loss. Of the rivals
    between the two lengths, each is decided by the chord for go, and by the longer runs for
    stay."""
    rng, draws = np.random.default_rng([n, int(1000 * noise)]), 150
    for speed_up in (17 / 16, 9 / 8, 19 / 16, 11 / 8):
        evidence = (runs_of_two_lengths(law, speed_up, noise, n, rng) for _ in range(draws))
        words = [decide(each, ["arm0"], exact(speed_up), 11 / 8)[0].word for each in evidence]
        share = (len(words) - words.count(UNDECIDED)) / draws
        assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


def test_a_chord_decides_for_the_delay_and_longer_runs_against_it() -> None:
    """A tax below the speed-up is a go, one above 1.375 a stay against every rival; between them
    the chord says nothing against the delay."""
    rng = np.random.default_rng(0)
    words = {
        tax: {
            speed_up: decide(
                runs_of_two_lengths(LAWS["power with a floor"], tax, 0.001, 8, rng),
                ["arm0"],
                exact(speed_up),
                11 / 8,
            )[0].word
            for speed_up in (17 / 16, 9 / 8, 11 / 8)
        }
        for tax in (1.03, 1.2, 1.6)
    }
    assert {*words[1.03].values()} == {GO}
    assert [*words[1.2].values()] == [UNDECIDED, UNDECIDED, GO]
    assert {*words[1.6].values()} == {STAY}


def test_which_comparison_is_made_does_not_depend_on_its_losses() -> None:
    """Both are there; the delayed runs that are longer count, though the others would say go."""
    evidence = evidence_of([[1.0, 1.1, 1.2]], [1.0, 1.1, 1.2], [1.5, 1.6, 1.7])
    for at in (pessimistic(evidence, ["arm0"], 9 / 8), optimistic(evidence, ["arm0"], 9 / 8)):
        assert (at.lengths, at.sync_lengths) == ((450,), (400,))
        assert at.gap == 0


def test_each_seed_is_compared_at_the_arm_that_is_best_on_the_others() -> None:
    evidence = evidence_of([[1.0, 1.0, 4.0], [2.0, 2.0, 2.0]], [0.0] * 3, [0.0] * 3)
    at = pessimistic(evidence, ["arm0", "arm1"], 9 / 8)
    # Seeds 1, 2 have 2.5 and 2: arm1; likewise 0, 2; seeds 0 and 1 choose arm0, which has 4.
    assert at.gap == pytest.approx(np.mean([2.0, 2.0, 4.0]))
    plain = stats.ttest_1samp([2.0, 2.0, 4.0], 0).confidence_interval(0.95)
    half = np.sqrt(1 + 3 / 2) * (plain.high - plain.low) / 2
    assert at.interval == pytest.approx((at.gap - half, at.gap + half))


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("rate", [0.05, 0.25, 0.75])
def test_an_arm_that_diverges_is_a_go_in_at_most_5_percent(n: int, rate: float) -> None:
    """Of the runs that would end highest a share diverges, so that those that are left end lower
    than sync, where all would end as high."""
    rng, draws = np.random.default_rng([n, int(100 * rate)]), 400
    highest = stats.norm.ppf(1 - rate)
    num_wrong = 0
    for _ in range(draws):
        common, sync = rng.normal(0, 0.02, n), rng.normal(0, 0.01, n)
        noise = rng.normal(0, 1, (2, n))
        at_400, at_450 = np.where(noise > highest, np.inf, common + 0.01 * noise)
        evidence = evidence_of([at_400 + 0.1], common + sync, common + sync)
        for seed, loss in enumerate(at_450):
            evidence.finals["arm0"][seed][450] = loss
        num_wrong += wrong(evidence, 450 / 400)
    assert num_wrong / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("noise", [0.001, 0.02])
@pytest.mark.parametrize("tax", [9 / 8, 11 / 8])
def test_a_measured_rival_is_decided_wrongly_in_at_most_5_percent(
    n: int, noise: float, tax: float
) -> None:
    """The tax is the true speed-up, and each step was timed five times. Losses are exact enough
    that nearly all would be decided if the mean of the measured ratio were taken for the truth."""
    rng, draws = np.random.default_rng([n, int(1000 * noise), int(1000 * tax)]), 300
    words = []
    for _ in range(draws):
        theirs, own = np.exp(rng.normal(0, noise, (2, 5)))
        at = ratio([*(tax * theirs)], [*own])
        common = rng.normal(0, 0.02, n)
        evidence = replace(evidence_of([common], common, common), updates=UPDATES)
        lengths = [UPDATES, *(ceil(UPDATES * end) for end in at)]
        for arm, of_arm, slower in (("sync", lengths[:1], 1.0), ("arm0", lengths, tax)):
            for seed in range(n):
                evidence.finals[arm][seed] = {
                    updates: LAWS["line"](updates / slower) + common[seed] + rng.normal(0, 1e-5)
                    for updates in of_arm
                }
        words.append(decide(evidence, ["arm0"], at, 11 / 8)[0].word)
    allowed = 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)
    assert (draws - words.count(UNDECIDED)) / draws <= allowed


def test_a_speed_up_that_is_only_simulated_never_says_go_against_what_was_measured() -> None:
    evidence = runs_of_two_lengths(LAWS["line"], 1.0, 1e-5, 8, np.random.default_rng(0))
    for low, word in ((11 / 8, GO), (0.0, UNDECIDED)):
        decision, _ = decide(evidence, ["arm0"], Ratio(11 / 8, low, 11 / 8), 11 / 8)
        assert decision.word == word
    assert "time_2bw=" in decision.why
