"""The rules that were used before err where those in use do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.claims.above import Above, NearBest, near_best, removes
from analysis.claims.audit import audit
from analysis.claims.claim import against
from analysis.claims.corrections import Diverges, NoHelp
from analysis.claims.rule import CONTRADICTED, REPRODUCED, ClaimRule
from analysis.statistics.intervals import mean_intervals
from analysis.statistics.spikes import WINDOW, measure
from tests.support.simulated_claims import (
    LARGER,
    MOST,
    ORDER,
    SLACK,
    STORES,
    Values,
    stored,
    stored_parts,
)


def holds_zero(values: Values) -> Any:
    """The old rule of the horizon: EF reaches sync if the interval of what is left holds 0."""
    plain, left = (mean_intervals(values[..., row, :])[0] for row in (0, 1))
    return np.where(plain > 0, np.where(left <= 0, REPRODUCED, CONTRADICTED), 0)


def overlap(values: Values) -> Any:
    """The old rule of the coefficient: two unpaired intervals overlap."""
    at_one = NEAR.contrasts[0].weights.index(-1.0)
    low, high = mean_intervals(values)
    best = values[..., 1:, :].mean(axis=-1).argmin(axis=-1)[..., None]
    of_best = np.take_along_axis(high[..., 1:], best, axis=-1)[..., 0]
    helps = high[..., at_one] < low[..., 0]
    near = np.where(of_best < low[..., at_one], CONTRADICTED, REPRODUCED)
    return np.where(helps, near, 0)


def not_shown(values: Values) -> Any:
    """The old rule of Taylor: no coefficient is shown to help, and the largest one harms."""
    removed = values[..., :1, :] - values[..., 1:, :]
    low, high = mean_intervals(removed)
    return np.where((low <= 0).all(axis=-1) & (high[..., -1] < 0), REPRODUCED, 0)


def two_of_three(values: Values) -> Any:
    """The old rule of feedback on gradients: two of three trials diverge."""
    return np.where(values.mean(axis=(-2, -1)) >= 2 / 3, REPRODUCED, 0)


class AlwaysAt95(Above):
    """The old contradiction: the 95 % interval of any of many parts."""

    def decide(self, values: Values, confidence: float) -> Any:
        return super().decide(values, 0.95)


NEAR: NearBest = near_best([0.5, 1.0, 1.5])


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize(
    ("old", "rule", "means"),
    [
        (holds_zero, removes(0.8), [0.1, 0.05]),
        (overlap, NEAR, [0.1, 0.08, 0.05, 0.08]),
        (not_shown, NoHelp((1.0, 2.0)), [0.05, 0.05, 0.1]),
        (two_of_three, Diverges(), [1.0]),
    ],
    ids=["holds 0", "overlap", "not shown", "two of three"],
)
def test_the_old_rules_call_what_is_false_reproduced(
    old: Callable[[Values], Any], rule: ClaimRule, means: list[float], n: int
) -> None:
    """On the same simulated stores on which the rule in use errs in at most 5 %."""
    store = stored(rule, means, n, 0)
    worst, of_rule = 0.0, 0.0
    for at in rule.means_at(np.array(means)).just_false:
        values = rule.draw(at, store.values, (STORES, n), np.random.default_rng(5))
        worst = max(worst, float(np.mean(old(values) == REPRODUCED)))
        of_rule = max(of_rule, float(np.mean(rule.decide(values, 0.95) == REPRODUCED)))
    assert of_rule <= MOST + SLACK
    assert worst > MOST + SLACK


def test_eight_parts_at_95_percent_contradict_what_is_true() -> None:
    parts = stored_parts(ORDER, 3)
    mutants = [replace(part, rule=AlwaysAt95(LARGER.contrasts)) for part in parts]
    rates = [
        audit(comparisons, against(comparisons), 1, STORES).contradicted_if_true.share
        for comparisons in (parts, mutants)
    ]
    assert rates[0] <= MOST + SLACK
    assert rates[1] > 2 * MOST


def test_pairs_decide_where_two_intervals_do_not() -> None:
    """Seeds that move both gaps alike, as the same batches do: what is so is seen in 98 % by pairs,
    in few by whether two intervals overlap."""
    rng = np.random.default_rng(0)
    values = np.array([0.1, 0.14])[:, None] + rng.normal(0, 0.05, (STORES, 1, 5))
    values = values + rng.normal(0, 0.01, (STORES, 2, 5))
    low, high = mean_intervals(values)
    assert np.mean(LARGER.decide(values, 0.95) == REPRODUCED) > 0.8
    assert np.mean(high[:, 0] < low[:, 1]) < 0.2


@pytest.mark.parametrize("updates", [200, 5_000])
def test_a_placebo_without_a_delay_has_no_spike(updates: int) -> None:
    """Two runs that see the same batches. The old height, the largest running mean of the rest of
    the run above the level before, is a spike of the noise in a long run, and none in a short one,
    in which the loss falls: it calls the placebo something in most stores."""
    rng, stores, seeds = np.random.default_rng(0), 300, 3
    slope = np.linspace(4.0, 0.0, updates) if updates < 1_000 else np.zeros(updates)
    new, old = np.empty((stores, seeds)), np.empty((stores, seeds))
    for at in np.ndindex(stores, seeds):
        batches = slope + rng.normal(0, 0.1, updates)
        arm, sync = (batches + rng.normal(0, 0.01, updates) for _ in range(2))
        new[at] = measure(arm, sync)[0]
        sums = np.cumsum(arm)
        means = (sums[2 * WINDOW :] - sums[WINDOW:-WINDOW]) / WINDOW
        old[at] = means.max() - arm[:WINDOW].mean()
    decided = {}
    for name, heights in (("new", new), ("old", old)):
        low, high = mean_intervals(heights)
        decided[name] = float(np.mean((low > 0) | (high < 0)))
    assert decided["new"] <= MOST + 3 * np.sqrt(MOST / stores)
    assert decided["old"] > 0.2
