"""What a claim is, and how it is judged."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd

from pipegap.analysis.claims.rule import (
    CONTRADICTED,
    MOST_SEEDS,
    REPRODUCED,
    Audit,
    Comparison,
    Estimate,
    audit,
)
from pipegap.analysis.statistics.intervals import CONFIDENCE, POWER, shared_confidence
from pipegap.analysis.statistics.pairs import ENOUGH_UPDATES


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
    others: Sequence[ClaimPart] = ()
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
    other_parts = _parts([comparison for comparison in comparisons if not comparison.counts])
    if not comparisons_counted:
        verdict = _undecided(claim, "trials", "no trial of the arms that it is about")
        return verdict._replace(others=other_parts)
    parts = _parts(comparisons_counted)
    return Verdict(
        claim, _together([part.outcome for part in parts]), parts, other_parts, comparisons_counted
    )


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
    audit_of_claim = audit(parts, against(comparisons), seed=crc32(verdict.claim.name.encode()))
    return verdict._replace(
        audit=audit_of_claim._replace(num_left_out=len(comparisons) - len(parts))
    )


def not_run(claim: Claim, command: str) -> Verdict:
    """The verdict on a claim none of whose sweeps was run; `command` runs one."""
    return _undecided(claim, "trials", f"not run: {command}")


def against(comparisons: Sequence[Comparison]) -> float:
    """The confidence of an interval that may contradict a claim of these parts (Bonferroni)."""
    return shared_confidence(sum(comparison.rule.num_refuting for comparison in comparisons))


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a claim from those of its parts."""
    if Outcome.CONTRADICTED in outcomes:
        return Outcome.CONTRADICTED
    return Outcome.REPRODUCED if {*outcomes} == {Outcome.REPRODUCED} else Outcome.UNDECIDED


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
