"""What a claim and its rule are, how a claim is judged, and how a rule is audited."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import stats

from pipegap.analysis.statistics.pairs import (
    CONFIDENCE,
    ENOUGH_UPDATES,
    POWER,
    UNTOLD,
    Interval,
    Values,
    ends_text,
    mean_with_ends,
    shared_confidence,
)

# What a rule is, what it is applied to, and its audit.
#
# A rule is applied to numbers of the same seeds, one row per quantity. Values have the shape
# (..., rows, seeds), so that a rule judges one store or thousands of simulated ones by the same
# lines. In the audit it judges simulated stores in which there is nothing to decide, and stores
# with the means that were observed: with the rows, seeds and noise of the store in hand, and the
# parts of a claim drawn independently of each other. Draws depend on nothing but the seed.

SAME = 0.2
"""A difference is small if it is surely below this share of the gap of the plain delay."""
REPRODUCED, CONTRADICTED = 1, -1
Codes = NDArray[np.int8]
"""REPRODUCED, CONTRADICTED, or 0: undecided."""
Mask = NDArray[np.bool_]
"""Shape (...)."""
Means = NDArray[np.float64]
"""Shape (rows,)."""


class Estimate(NamedTuple):
    """A mean with its 95 % interval over n seeds; infinite where all of them diverged."""

    name: str
    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return f"{self.name} diverged at {self.n} of {self.n}"
        if math.isnan(self.mean):
            return f"{self.name} {UNTOLD} n={self.n}" if self.n else f"{self.name} n=0"
        ends = ends_text(self.low, self.high, "+.3f")
        return f"{self.name} {self.mean:+.3f}{ends} n={self.n}"


def estimate(name: str, values: Values) -> Estimate:
    """The mean of one value per seed; NaN without any."""
    return Estimate(name, *mean_with_ends(values), len(values))


class ClaimRule(ABC):
    """How values become a verdict.

    The rows are losses or gaps unless a rule says otherwise: normal, with the covariance that the
    rows have over the seeds of a store. So the difference of any two rows has its paired standard
    deviation.
    """

    @property
    def num_refuting(self) -> int:
        """How many comparisons could contradict the claim."""
        return 1

    @abstractmethod
    def decide(self, values: Values, confidence: float) -> Codes:
        """Codes of shape (...); `confidence`: of the intervals that may contradict."""

    @abstractmethod
    def why(self, values: Values) -> str:
        """Why values of shape (rows, seeds) are undecided."""

    def placebo(self, means: Means) -> Means:
        """Means of the rows without any effect, from those that were observed."""
        return np.zeros_like(means)

    def numbers(self, values: Values) -> list[Estimate]:
        """The paired numbers that decide, beside the rows themselves."""
        return []

    def draw(self, means: Means, values: Values, shape: tuple[int, int], rng: Generator) -> Values:
        """Values of (stores, seeds) simulated stores, with the noise of `values`: for means of the
        shape (..., rows) that of (..., stores, rows, seeds), all of them with the same draws."""
        stores, num_seeds = shape
        n = values.shape[1]
        residuals = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(n - 1)
        # [rows, min(rows, seeds)]: factor @ factor.T is the covariance of the rows over the seeds.
        factor = np.linalg.qr(residuals.T).R.T
        noise = rng.standard_normal((stores, factor.shape[1], num_seeds))
        return means[..., None, :, None] + factor @ noise  # [..., stores, rows, seeds]


def codes_of(is_shown: Mask, refuted: Mask, is_known: Mask | bool = True) -> Codes:
    """CONTRADICTED where refuted, else REPRODUCED where shown; undecided where not known."""
    codes = np.where(refuted, CONTRADICTED, np.where(is_shown, REPRODUCED, 0))
    return np.where(is_known, codes, 0).astype(np.int8)


class Row(NamedTuple):
    """A quantity: one value per seed, infinite where the trial diverged and sync's did not."""

    name: str
    by_seed: pd.Series
    is_shown: bool = True

    @property
    def flaw(self) -> str:
        """Why it decides nothing; empty if it can decide."""
        n, diverged = len(self.by_seed), int(np.isinf(self.by_seed).sum())
        if n == 0:
            return f"{self.name} is missing"
        if n < 2:
            return f"{self.name} has n={n}"
        return f"{self.name}: {diverged} of {n} diverged" if 0 < diverged < n else ""

    @property
    def estimate(self) -> Estimate:
        """The mean over the seeds that did not diverge, or over all seeds if none completed."""
        values = self.by_seed.to_numpy(dtype=float)
        finite = values[np.isfinite(values)]
        return estimate(self.name, finite if len(finite) else values)


@dataclass(frozen=True)
class Comparison:
    """Rows that a rule decides about."""

    what: str
    rows: Sequence[Row]
    rule: ClaimRule
    counts: bool = True
    """Whether it judges the paper: comparisons of other optimizers do not."""
    reason: str = ""
    """Why it decides nothing, for a reason other than its rows."""

    @cached_property
    def values(self) -> Values:
        """Shape (rows, seeds): the seeds that all rows have."""
        shared = sorted(set.intersection(*({*row.by_seed.index} for row in self.rows)))
        return np.array([row.by_seed.loc[shared].to_numpy(dtype=float) for row in self.rows])

    @cached_property
    def flaw(self) -> str:
        """Why it decides nothing; empty if it can decide."""
        flaws = dict.fromkeys(row.flaw for row in self.rows if row.flaw)
        shared = self.values.shape[1]
        too_few = f"{shared} seeds are in all of its arms" if not flaws and shared < 2 else ""
        return self.reason or "; ".join(flaws) or too_few

    @property
    def numbers(self) -> tuple[Estimate, ...]:
        """What is compared, and the paired numbers that decide."""
        paired = [] if self.flaw else self.rule.numbers(self.values)
        return (*(row.estimate for row in self.rows if row.is_shown), *paired)


ERRORS, SEARCH = 2_000, 400
"""Simulated stores for a rate of errors, and for each step of the search for seeds."""
MOST_SEEDS = 128
"""The most seeds that are tried."""


@cache
def _exact(num: int, total: int) -> Interval:
    """The exact 95 % interval of a share (Clopper, Pearson). A table asks for few of them often."""
    ends = stats.binomtest(num, total).proportion_ci(CONFIDENCE)
    return float(ends.low), float(ends.high)


class Rate(NamedTuple):
    """So many of so many simulated stores."""

    num: int
    total: int

    @property
    def share(self) -> float:
        """The number over the total."""
        return self.num / self.total

    @property
    def interval(self) -> Interval:
        """See `_exact`."""
        return _exact(self.num, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


class Audit(NamedTuple):
    """What a claim's rule says of simulated stores with the arms, seeds and noise of one store."""

    decided_if_placebo: Rate
    """There is no effect, and so nothing to decide."""
    decided: Rate
    """Decided, at the means that were observed."""
    seeds: int | None
    """Seeds that decide with a probability of POWER at these means; None: more than
    MOST_SEEDS."""
    num_left_out: int = 0
    """Parts that cannot be simulated: without two seeds, or where trials diverged."""


def audit(parts: Sequence[Comparison], confidence: float, seed: int, stores: int = ERRORS) -> Audit:
    """How often the rules of a claim's parts decide; `confidence`: of a contradiction."""

    def of_claim(
        means: Sequence[Means],
        num_stores: int,
        num_seeds: int | None = None,
        enough: float = np.inf,
    ) -> Rate:
        """Returns the share of `num_stores` simulated stores that the claim decides.

        `means` are the true means of each part. A store has `num_seeds` seeds, by default as many
        as the trials have. The simulation may stop before the last part once a share of at least
        `enough` of the stores is decided.
        """
        is_shown, refuted = np.ones(num_stores, bool), np.zeros(num_stores, bool)
        for index, (part, of_part) in enumerate(zip(parts, means, strict=True)):
            shape = num_stores, num_seeds or part.values.shape[1]
            rng = np.random.default_rng([seed, index])  # each part by itself: independent draws
            values = part.rule.draw(of_part[None], part.values, shape, rng)  # [1, stores, rows, …]
            codes = part.rule.decide(values, confidence)[0]  # [stores]
            is_shown &= codes == REPRODUCED
            refuted |= codes == CONTRADICTED
            if refuted.mean() >= enough:  # which no other part takes back
                break
        return Rate(int(np.count_nonzero(is_shown | refuted)), num_stores)

    observed = [part.values.mean(axis=1) for part in parts]
    placebo = [part.rule.placebo(means) for part, means in zip(parts, observed, strict=True)]
    return Audit(
        of_claim(placebo, stores),
        of_claim(observed, SEARCH),
        _seeds(lambda num_seeds: of_claim(observed, SEARCH, num_seeds, POWER).share >= POWER),
    )


def _seeds(decides: Callable[[int], bool]) -> int | None:
    """The fewest seeds that decide: doubled until they do, then bisected."""
    high = 2  # one seed has no interval
    while not decides(high):
        if high >= MOST_SEEDS:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


# What a claim is, and how it is judged.


class Outcome(StrEnum):
    """The outcome of a claim, or of a part of it."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "not enough data"


OF_CODE = {REPRODUCED: Outcome.REPRODUCED, CONTRADICTED: Outcome.CONTRADICTED}
"""Outcomes by the numbers that rules give; any other number is undecided."""


class ClaimPart(NamedTuple):
    """One comparison: what was compared, its outcome, its numbers, and why it is undecided."""

    what: str
    outcome: Outcome
    numbers: tuple[Estimate, ...] = ()
    why: str = ""


class Claim(NamedTuple):
    """One sentence of the paper. `compare(trials)` receives the trials of `sweeps` alone."""

    name: str
    statement: str
    place: str
    """Figure or table of the paper, and its own number where it is known."""
    sweeps: tuple[str, ...]
    rule: str
    compare: Callable[[pd.DataFrame], Sequence[Comparison]]


class Verdict(NamedTuple):
    """The outcome of a claim at one scale."""

    claim: Claim
    outcome: Outcome
    parts: Sequence[ClaimPart]
    other_parts: Sequence[ClaimPart] = ()
    """Parts about optimizers that are not in the paper: they do not judge the claim."""
    comparisons: Sequence[Comparison] = ()
    """What `parts` were decided from."""
    audit: Audit | None = None
    """How often the claim's rule errs; None before the audit, or if nothing can be simulated."""

    @property
    def summary(self) -> str:
        """`5 of 8 reproduced, 1 contradicted`."""
        count = [part.outcome for part in self.parts].count
        words = f"{count(Outcome.REPRODUCED)} of {len(self.parts)} reproduced"
        contradicted = count(Outcome.CONTRADICTED)
        return words + (f", {contradicted} contradicted" if contradicted else "")

    @property
    def doubt(self) -> str:
        """How often the rule decides where there is no effect. Undecided: how many seeds would
        decide."""
        if self.audit is None:
            return ""
        if self.outcome != Outcome.UNDECIDED:
            return f"false alarm rate {self.audit.decided_if_placebo}"
        seeds = self.audit.seeds or f"more than {MOST_SEEDS}"
        of_parts = ", for its parts that have data" if self.audit.num_left_out else ""
        return f"{seeds} seeds would decide it with a probability of {POWER:.0%}{of_parts}"


ALL_PARTS = (
    "Every comparison is of pairs: a number of each seed, its mean and Student's t-interval. A "
    "claim of several parts is reproduced if each of them is, by intervals of 95 %; contradicted "
    "if one of them is, by intervals of 1 - 5 %/k where k comparisons could contradict it, so that "
    "many parts do not make a contradiction of noise; and else not enough data. Trials of fewer "
    f"than {ENOUGH_UPDATES} updates decide nothing, nor do fewer than 2 seeds, or an arm of which "
    "a part of the seeds diverged. Where all seeds of an arm diverged and those of sync did not, "
    "its gap counts as infinite. Only the optimizers of the paper judge it: others have a line of "
    "their own."
)
"""The rule that all claims share, in words."""


def judged(claim: Claim, trials: pd.DataFrame) -> Verdict:
    """The verdict on a claim from the trials of its sweeps, `load`'s table."""
    enough = deciding(trials)
    if len(trials) and enough.empty:
        longest = trials["num_updates"].max()
        why = f"the longest trial has {longest} updates, {ENOUGH_UPDATES} decide something"
        return _undecided(claim, "length of the trials", why)
    comparisons = claim.compare(enough) if len(enough) else []
    comparisons_counted = [comparison for comparison in comparisons if comparison.counts]
    # By themselves: other optimizers do not make the intervals of the paper's wider.
    other_parts = _parts([comparison for comparison in comparisons if not comparison.counts])
    if not comparisons_counted:
        verdict = _undecided(claim, "trials", "no trial of the arms that it is about")
        return verdict._replace(other_parts=other_parts)
    parts = _parts(comparisons_counted)
    outcomes = {part.outcome for part in parts}
    if Outcome.CONTRADICTED in outcomes:
        outcome = Outcome.CONTRADICTED
    else:
        outcome = outcomes.pop() if len(outcomes) == 1 else Outcome.UNDECIDED
    return Verdict(claim, outcome, parts, other_parts, comparisons_counted)


def deciding(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of points of ENOUGH_UPDATES: shorter ones are a smoke test. A run that
    diverged is shorter than those of its point."""
    longest = trials.groupby("point")["num_updates"].transform("max")
    return trials[longest.fillna(0) >= ENOUGH_UPDATES]


def audited(verdict: Verdict) -> Verdict:
    """The verdict with its audit; without one if no part of it can be simulated."""
    comparisons = verdict.comparisons
    parts = [part for part in comparisons if not part.flaw and np.isfinite(part.values).all()]
    if not parts:
        return verdict
    # crc32, not `hash`, which differs from process to process.
    rates = audit(parts, against(comparisons), seed=crc32(verdict.claim.name.encode()))
    return verdict._replace(audit=rates._replace(num_left_out=len(comparisons) - len(parts)))


def not_run(claim: Claim, command: str) -> Verdict:
    """The verdict on a claim none of whose sweeps was run; `command` runs one."""
    return _undecided(claim, "trials", f"not run: {command}")


def against(comparisons: Sequence[Comparison]) -> float:
    """The confidence of an interval that may contradict a claim of these parts (Bonferroni)."""
    return shared_confidence(sum(comparison.rule.num_refuting for comparison in comparisons))


def _parts(comparisons: Sequence[Comparison]) -> list[ClaimPart]:
    confidence = against(comparisons) if comparisons else CONFIDENCE
    return [_part(comparison, confidence) for comparison in comparisons]


def _part(comparison: Comparison, confidence: float) -> ClaimPart:
    what, rule, numbers = comparison.what, comparison.rule, comparison.numbers
    if comparison.flaw:
        return ClaimPart(what, Outcome.UNDECIDED, numbers, comparison.flaw)
    code = int(rule.decide(comparison.values, confidence))
    outcome = OF_CODE.get(code, Outcome.UNDECIDED)
    why = rule.why(comparison.values) if outcome == Outcome.UNDECIDED else ""
    return ClaimPart(what, outcome, numbers, why)


def _undecided(claim: Claim, what: str, why: str) -> Verdict:
    return Verdict(claim, Outcome.UNDECIDED, [ClaimPart(what, Outcome.UNDECIDED, why=why)])
