"""What a claim is, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import pandas as pd

from analysis.claims.comparison import Comparison, Estimate
from analysis.claims.rates import MOST_SEEDS, Audit
from analysis.claims.rule import CONTRADICTED, REPRODUCED
from analysis.statistics.intervals import CONFIDENCE
from analysis.statistics.power import POWER

ENOUGH_UPDATES = 100
"""Shorter trials show that the code runs, not what a delay costs."""


class Outcome(StrEnum):
    """The outcome of a claim, or of a part of it."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "not enough data"


OF_CODE = {REPRODUCED: Outcome.REPRODUCED, CONTRADICTED: Outcome.CONTRADICTED}
"""Outcomes by the numbers that rules give; any other number is undecided."""


class Part(NamedTuple):
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
    parts: Sequence[Part]
    others: Sequence[Part] = ()
    """The same of optimizers that are not in the paper: they do not judge it."""
    comparisons: Sequence[Comparison] = ()
    """What `parts` were decided from."""
    audit: Audit | None = None
    """How often its rule errs; None before it was audited, or if nothing can be simulated."""

    @property
    def summary(self) -> str:
        """`5 of 8 reproduced, 1 contradicted`."""
        count = [part.outcome for part in self.parts].count
        words = f"{count(Outcome.REPRODUCED)} of {len(self.parts)} reproduced"
        contradicted = count(Outcome.CONTRADICTED)
        return words + (f", {contradicted} contradicted" if contradicted else "")

    @property
    def doubt(self) -> str:
        """How often the rule would say so wrongly, or how many seeds would decide it."""
        if self.audit is None:
            return ""
        if self.outcome == Outcome.REPRODUCED:
            return f"were it just false, the rule would say so in {self.audit.reproduced_if_false}"
        if self.outcome == Outcome.CONTRADICTED:
            return f"were it just true, the rule would say so in {self.audit.contradicted_if_true}"
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
    longest = max(trials["num_updates"].dropna(), default=0)
    if 0 < longest < ENOUGH_UPDATES:
        why = f"the longest trial has {longest} updates, {ENOUGH_UPDATES} decide something"
        return _undecided(claim, "length of the trials", why)
    compared = claim.compare(trials) if len(trials) else []
    counted = [one for one in compared if one.counts]
    others = [one for one in compared if not one.counts]
    if not counted:
        verdict = _undecided(claim, "trials", "no trial of the arms that it is about")
        return verdict._replace(others=_parts(others))
    parts = _parts(counted)
    outcome = together([part.outcome for part in parts])
    return Verdict(claim, outcome, parts, _parts(others), counted)


def not_run(claim: Claim, command: str) -> Verdict:
    """The verdict on a claim none of whose sweeps was run; `command` runs one."""
    return _undecided(claim, "trials", f"not run: {command}")


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a claim from those of its parts."""
    if Outcome.CONTRADICTED in outcomes:
        return Outcome.CONTRADICTED
    return Outcome.REPRODUCED if {*outcomes} == {Outcome.REPRODUCED} else Outcome.UNDECIDED


def against(compared: Sequence[Comparison]) -> float:
    """The confidence of an interval that may contradict a claim of these parts (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / sum(one.rule.num_refuting for one in compared)


def _parts(compared: Sequence[Comparison]) -> list[Part]:
    confidence = against(compared) if compared else CONFIDENCE
    return [_part(one, confidence) for one in compared]


def _part(one: Comparison, confidence: float) -> Part:
    if one.flaw:
        return Part(one.what, Outcome.UNDECIDED, one.numbers, one.flaw)
    outcome = OF_CODE.get(int(one.rule.decide(one.values, confidence)), Outcome.UNDECIDED)
    why = one.rule.why(one.values) if outcome == Outcome.UNDECIDED else ""
    return Part(one.what, outcome, one.numbers, why)


def _undecided(claim: Claim, what: str, why: str) -> Verdict:
    return Verdict(claim, Outcome.UNDECIDED, [Part(what, Outcome.UNDECIDED, why=why)])
