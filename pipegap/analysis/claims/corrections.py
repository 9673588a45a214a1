"""Claims about what is done about a delay, and about downstream tasks."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.random import Generator
from scipy import stats

from pipegap.analysis.claims.measure import (
    DELAY,
    PAPER,
    Above,
    Column,
    Contrast,
    measured,
    more,
    near_best,
    of_points,
    row,
    share,
    with_key,
    words,
)
from pipegap.analysis.claims.rule import (
    SAME,
    Claim,
    ClaimRule,
    Codes,
    Comparison,
    Estimate,
    Mask,
    Means,
    Row,
    codes_of,
    estimate,
)
from pipegap.analysis.statistics.diagnostics import (
    WINDOW,
    Noise,
    intervals,
    noise,
    safe_intervals,
    spikes,
    task_scores,
)
from pipegap.analysis.statistics.pairs import CONFIDENCE, Values, mean_intervals
from pipegap.analysis.table import names
from pipegap.analysis.table.metrics import ACCURACY, BITS, CHANCE
from pipegap.analysis.table.points import in_order
from pipegap.trainer.base.errors import Status

# Claims about what is done about a delay: Error Feedback, Taylor compensation, feedback on
# gradients, and runs that are synchronous at the start or at the end.


@dataclass(frozen=True)
class NoHelp(ClaimRule):
    """Reproduced where each row surely removes less than SAME of the first row, although the last
    one changes it; contradicted where one surely removes something and its neighbours do in the
    mean. Rows: the gap of the plain delay, and that of each coefficient, ascending."""

    coefficients: tuple[float, ...]

    @property
    def num_refuting(self) -> int:
        """How many coefficients there are."""
        return len(self.coefficients)

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether every coefficient removes little, or one of them removes something."""
        removed = _removed(values)
        low, high = mean_intervals(removed[..., -1, :])
        changed = (low > 0) | (high < 0)
        positive = removed.mean(axis=-1) > 0
        no_limit = np.ones_like(positive)  # [..., coefficients]: both neighbours help in the mean
        no_limit[..., 1:] &= positive[..., :-1]
        no_limit[..., :-1] &= positive[..., 1:]
        # A single coefficient that helps beside two that harm is taken for chance.
        helps = (mean_intervals(removed, confidence)[0] > 0) & no_limit
        needed = mean_intervals(values[..., 0, :])[0] > 0
        return codes_of(_is_small(values).all(axis=-1) & changed, helps.any(axis=-1), needed)

    def why(self, values: Values) -> str:
        """That there may be no gap, which coefficients may help, or that none changes the loss."""
        if not mean_intervals(values[0])[0] > 0:
            return "the gap of the plain delay may be 0"
        small = zip(self.coefficients, _is_small(values), strict=True)
        large = [f"{coefficient:g}" for coefficient, is_small in small if not is_small]
        if large:
            return f"λ={', '.join(large)} may remove {SAME:.0%} or more"
        return "the largest coefficient is not shown to change the loss"

    def numbers(self, values: Values) -> list[Estimate]:
        """The share that each coefficient removes."""
        gaps_left = values[0] - _removed(values)  # [coefficients, seeds]
        return [
            share(f"share removed at λ={coefficient:g}", gap_left, values[0])
            for coefficient, gap_left in zip(self.coefficients, gaps_left, strict=True)
        ]


def _removed(values: Values) -> Values:
    """What each coefficient removes of the plain gap: [..., coefficients, seeds]."""
    return values[..., :1, :] - values[..., 1:, :]


def _is_small(values: Values) -> Mask:
    """Whether a coefficient surely removes less than SAME of the plain gap: [..., coefficients]."""
    return mean_intervals(SAME * values[..., :1, :] - _removed(values))[0] > 0


@dataclass(frozen=True)
class Diverges(ClaimRule):
    """Reproduced where more than half of the trials surely diverge, contradicted where fewer do, by
    exact binomial tests of all rows together. Rows: 1 where a trial diverged, else 0."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether more than half diverge, or fewer."""
        total, count = values.shape[-2] * values.shape[-1], values.sum(axis=(-2, -1))
        # sf(count − 1) is the probability of `count` or more.
        more = stats.binom.sf(count - 1, total, 0.5) <= (1 - CONFIDENCE) / 2
        fewer = stats.binom.cdf(count, total, 0.5) <= (1 - confidence) / 2
        return codes_of(more, fewer)

    def why(self, values: Values) -> str:
        """How many diverged."""
        return f"{values.sum():.0f} of {values.size} diverged: too few, or about half"

    def placebo(self, means: Means) -> Means:
        """Half of the trials diverge."""
        return np.full_like(means, 0.5)

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Trials that diverge or not, each by itself."""
        stores, num_seeds = shape
        uniform = rng.random((stores, means.shape[-1], num_seeds))
        return (uniform < means[..., None, :, None]).astype(float)


def _by_coefficient(
    trials: pd.DataFrame, method: str, rule: Callable[[list[float]], ClaimRule]
) -> list[Comparison]:
    """One per optimizer and point: the plain delay, and that with each coefficient, ascending."""
    gaps = measured(trials)
    # Without synchronous phases, as the plain delay that they are compared with.
    late = gaps[(gaps["schedule"] == DELAY) & (gaps["start"] == 0) & (gaps["cooldown"] == 0)]
    compared = []
    for optimizer, name, rows in of_points(late[late["method"] == method]):
        values = sorted(rows["coefficient"].unique())
        plain = gaps[(gaps["arm"] == "delay") & gaps["point"].isin(rows["point"])]
        corrected = [row(f"λ={value:g}", rows[rows["coefficient"] == value]) for value in values]
        of_arms = [row("delay", plain), *corrected]
        compared.append(Comparison(name, of_arms, rule(values), optimizer in PAPER))
    return compared


def _near_one(trials: pd.DataFrame) -> list[Comparison]:
    def rule(values: list[float]) -> ClaimRule:
        return near_best(values if 1.0 in values else [1.0])  # else it is not applied: `reason`

    return [
        replace(
            comparison,
            reason="" if "λ=1" in [row.name for row in comparison.rows] else "λ=1 is missing",
        )
        for comparison in _by_coefficient(trials, "error_feedback", rule)
        if len(comparison.rows) > 2  # beside the plain delay, two coefficients or more
    ]


def _diverges(trials: pd.DataFrame) -> list[Comparison]:
    gaps = measured(trials)
    rows = gaps[(gaps["arm"] == "delay_ef_gradient") & gaps["optimizer"].isin(PAPER)]
    of_each = [
        row(
            f"{name}: share that diverged",
            group.assign(diverged=(group["status"] == Status.DIVERGED).astype(float)),
            "diverged",
        )
        for _, name, group in of_points(rows)
    ]
    return [Comparison("all trials", of_each, Diverges())] if of_each else []


ARM = ["optimizer", "setting", "arm"]


@dataclass(frozen=True)
class Either(ClaimRule):
    """Reproduced where a change is shown, up or down; contradicted where it is surely within SAME
    of the first row. Rows: the quantity at one end, and at the other."""

    name: str

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether there is a change, or only a small one."""
        first, change = values[..., 0, :], _change(values)
        low, high = mean_intervals(change)
        within = [mean_intervals(SAME * first + sign * change, confidence)[0] for sign in (1, -1)]
        is_shown = (low > 0) | (high < 0)
        # A small change may be shown all the same: then it is reproduced, not contradicted.
        return codes_of(is_shown, np.all(np.greater(within, 0), axis=0) & ~is_shown)

    def why(self, values: Values) -> str:
        """That the change may be nothing, or not small."""
        return f"{self.name}: may be 0, or more than {SAME:.0%}"

    def numbers(self, values: Values) -> list[Estimate]:
        """The change."""
        return [estimate(self.name, _change(values))]


def _change(values: Values) -> Values:
    with np.errstate(invalid="ignore"):
        return values[..., 1, :] - values[..., 0, :]


def spike(trials: pd.DataFrame, heights: pd.DataFrame) -> list[Comparison]:
    """Is there one? `heights`: the table of `spikes` for these trials."""
    rule = Above((Contrast("the height", (1.0,)),))
    return [
        Comparison(words(*key), [row("height", group, "height")], rule, key[0] in PAPER)
        for key, group in in_order(heights, ARM).groupby(ARM, sort=False)
    ]


def spike_by_decay(trials: pd.DataFrame, heights: pd.DataFrame) -> list[Comparison]:
    """Does its height depend on β2?"""
    key, rule = "optimizer.variance_decay", Either("change of the height")
    compared = []
    for optimizer, group in with_key(trials, heights, key).groupby("optimizer", sort=False):
        decays = sorted({*group[key].dropna()})
        if len(decays) > 1:
            rows = [
                row(f"height at β2={decay:g}", group[group[key] == decay], "height")
                for decay in (decays[0], decays[-1])
            ]
            compared.append(Comparison(str(optimizer), rows, rule, optimizer in PAPER))
    return compared


def _by_height(
    compare: Callable[[pd.DataFrame, pd.DataFrame], list[Comparison]], trials: pd.DataFrame
) -> list[Comparison]:
    """With the heights of these trials. The report repeats the warnings of `spikes`."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return compare(trials, spikes(trials))


def _start(trials: pd.DataFrame) -> list[Comparison]:
    gaps = measured(trials)
    alone = (gaps["arm"] == gaps["base_arm"]) & (gaps["schedule"] == DELAY)  # no correction
    started = gaps[alone & (gaps["start"] > 0) & (gaps["cooldown"] == 0)]
    return _lower(gaps, started.assign(without="delay"))


def _cooldown(trials: pd.DataFrame) -> list[Comparison]:
    gaps = measured(trials)
    cooled = gaps[gaps["cooldown"] > 0]
    return _lower(gaps, cooled.assign(without=cooled["arm_without_cooldown"]))


def _lower(gaps: pd.DataFrame, changed: pd.DataFrame) -> list[Comparison]:
    """For each arm, that its gap is below that of the arm `without`, at the same point."""
    compared = []
    keys = [*ARM, "without", "point"]
    for (*key, base, point), rows in in_order(changed, keys).groupby(keys, sort=False):
        plain = gaps[(gaps["point"] == point) & (gaps["arm"] == base)]
        two = Column(str(key[-1]), rows), Column(str(base), plain)
        compared.append(more(words(*key), *two))
    return compared


OF_LOSSES = (
    Claim(
        "coefficient",
        "λ = 1 is near the best coefficient of Error Feedback",
        "figure 15 (135M: NorMuon's best is below 1, that of AdamW, Muon and SOAP slightly above)",
        ("coefficient", "overshoot"),
        "For each optimizer of which λ = 1 lowers the gap: the paired difference of the gaps at "
        f"λ = 1 and at each other λ is less than {SAME:.0%} of the plain gap, by 95 % intervals, "
        "and the λ of the smallest mean gap is not at the edge of the grid; contradicted where "
        "such a difference surely exceeds that.",
        _near_one,
    ),
    Claim(
        "taylor",
        "A Taylor compensation of the gradient does not help",
        "figure 14 (135M, Muon)",
        ("taylor",),
        "For each optimizer with a gap: every coefficient removes less than "
        f"{SAME:.0%} of it, by 95 % intervals of the paired difference, although the largest one "
        "changes the loss (the interval of its change does not hold 0, or trials diverge); "
        "contradicted where the interval of the share that one removes lies above 0 and its "
        "neighbours remove a positive share too.",
        partial(_by_coefficient, method="taylor", rule=lambda values: NoHelp(tuple(values))),
    ),
    Claim(
        "gradient_feedback",
        "Error Feedback on raw gradients diverges",
        "figure 19 (135M)",
        ("gradient_feedback",),
        "Of the trials of the paper's optimizers whose sync completes, all counted together: more "
        "than half diverge, by an exact binomial test at 2.5 % (6 of 6, 8 of 9); contradicted "
        "where fewer than half do, by the same test.",
        _diverges,
    ),
    Claim(
        "start",
        "A synchronous start of the run lowers the gap",
        "tables 1, 2 (its values are open in the public summaries)",
        ("synchronous_start",),
        "For each optimizer: the 95 % interval of the gap of the plain delay minus that with the "
        "start, paired by seed, lies above 0; contradicted where it lies below.",
        _start,
    ),
    Claim(
        "spike",
        "After a synchronous start the loss spikes where the delay is switched on",
        "figure 3",
        ("spike",),
        f"For each optimizer: the 95 % interval of the mean height lies above 0 (train loss minus "
        f"that of the same seed's sync arm, mean of the first {WINDOW} updates with the delay; "
        "both see the same batches); contradicted where it lies below.",
        partial(_by_height, spike),
    ),
    Claim(
        "spike_by_decay",
        "The height of that spike depends on β2",
        "figure 20 (135M)",
        ("spike",),
        "For each optimizer: the 95 % interval of the change of the height from the smallest to "
        "the largest β2, paired by seed, does not hold 0; contradicted where it does, and the "
        f"change is surely within {SAME:.0%} of the height at the smallest.",
        partial(_by_height, spike_by_decay),
    ),
    Claim(
        "cooldown",
        "A synchronous end of the run lowers the gap",
        "A.9 (135M; its result is open in the public summaries)",
        ("cooldown",),
        "For each optimizer and length: the 95 % interval of the gap of the same arm without it "
        "minus its own, paired by seed, lies above 0; contradicted where it lies below.",
        _cooldown,
    ),
)


# Claims about downstream tasks: that they see nothing of a delay whose errors are fed back.

MARGINS = {ACCURACY: 0.01, BITS: 0.01}
"""Differences that would not matter."""
ABOVE, DIFFERENCE = 0, 1
"""Rows: what sync scores above a guess, and the arm's score minus sync's, both means over the
questions, one value per seed."""


@dataclass(frozen=True)
class Equal(ClaimRule):
    """Reproduced where the difference is surely within the margin, contradicted where it is surely
    outside. Nothing is decided unless sync is surely better than a guess: guesses are all equal.

    `noises`: how uncertain the questions make each row, see `analysis.statistics.diagnostics`.
    """

    margin: float
    noises: tuple[Noise, Noise]

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether the difference lies within the margin, or outside of it."""
        low, high = self._interval(values, DIFFERENCE)
        refuting = safe_intervals(values[..., DIFFERENCE, :], self.noises[DIFFERENCE], confidence)
        is_known = self._interval(values, ABOVE)[0] > 0
        within = (low > -self.margin) & (high < self.margin)
        outside = (refuting[0] > self.margin) | (refuting[1] < -self.margin)
        return codes_of(within, outside, is_known)

    def why(self, values: Values) -> str:
        """That sync may guess, or that the difference may lie on either side of the margin."""
        if not self._interval(values, ABOVE)[0] > 0:
            return "sync may answer by chance: guesses are all equal"
        return f"the difference may be more or less than {self.margin:g}"

    def numbers(self, values: Values) -> list[Estimate]:
        """The difference, with its interval over seeds and questions."""
        low, high = self._interval(values, DIFFERENCE)
        mean = float(values[DIFFERENCE].mean())
        return [Estimate("difference", mean, float(low), float(high), values.shape[-1])]

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Seeds with their covariance, and questions drawn anew for each store, which are the same
        for its seeds: [..., stores, rows, seeds]."""
        stores, num_seeds = shape
        n = values.shape[1]
        residuals = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(n - 1)
        by_seed = residuals @ rng.standard_normal((stores, n, num_seeds))
        spread = np.sqrt([[noise.questions] for noise in self.noises])
        by_question = spread * rng.standard_normal((stores, len(spread), 1))  # shared by the seeds
        return means[..., None, :, None] + by_seed + by_question

    def _interval(self, values: Values, row: int) -> tuple[Values, Values]:
        return intervals(values[..., row, :], self.noises[row])


def _equal(trials: pd.DataFrame, measure: str) -> list[Comparison]:
    """One part per optimizer, point and task."""
    comparisons = []
    for scores in (scores for scores in task_scores(trials) if scores.arm == "delay_ef"):
        sync = scores.of_sync  # [seeds, questions]
        # Of accuracy what lies above a guess, of another measure the score itself.
        above_guess = sync[ACCURACY] - sync[CHANCE] if measure == ACCURACY else sync[measure]
        by_question = {"above a guess": above_guess, "difference": scores.difference(measure)}
        rows = [
            Row(name, pd.Series(values.mean(axis=1), index=[*scores.seeds]), is_shown=False)
            for name, values in by_question.items()
        ]
        above, difference = map(noise, by_question.values())
        name = words(names.optimizer(scores.optimizer), scores.task)
        rule = Equal(MARGINS[measure], (above, difference))
        comparisons.append(Comparison(name, rows, rule, scores.optimizer in PAPER))
    return comparisons


def _rule(measure: str, quantity: str, unless: str = "") -> str:
    return (
        f"For each optimizer of the paper and task: the 95 % interval over seeds and questions of "
        f"the difference in {quantity} lies within ±{MARGINS[measure]:g}; contradicted where it "
        f"lies outside of that altogether{unless}."
    )


OF_TASKS = (
    Claim(
        "downstream",
        "With Error Feedback downstream accuracy is that of sync",
        "table 4 (10B MoE: MMLU 0.411 and 0.407, HellaSwag 0.670 and 0.673, PIQA 0.775 and 0.778)",
        ("main",),
        _rule(ACCURACY, "accuracy", "; undecided where sync may answer by chance"),
        partial(_equal, measure=ACCURACY),
    ),
    Claim(
        "downstream_bits",
        "With Error Feedback right answers of downstream tasks are as likely as after sync",
        "table 4 (10B MoE; accuracy only)",
        ("main",),
        _rule(BITS, "the bits per byte of right answers"),
        partial(_equal, measure=BITS),
    ),
)


CLAIMS = (*OF_LOSSES, *OF_TASKS)
