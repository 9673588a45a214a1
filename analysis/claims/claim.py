"""What a claim is, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import pandas as pd

ENOUGH_UPDATES = 100
"""Trials shorter than this show that the code runs, not what a delay costs."""


class Outcome(StrEnum):
    """What the trials say of a claim, or of a part of it."""

    REPRODUCED = "reproduced"
    CONTRADICTED = "contradicted"
    UNDECIDED = "not enough data"


class Estimate(NamedTuple):
    """A mean with its 95 % interval over n seeds; infinite where all of them diverged."""

    name: str
    mean: float
    low: float
    high: float
    n: int
    reason: str = ""
    """Why it decides nothing, where that is not its n."""

    @property
    def flaw(self) -> str:
        """Why nothing can be decided by it; empty if something can."""
        if self.reason or self.n >= 2:
            return self.reason and f"{self.name}: {self.reason}"
        return f"{self.name} has n={self.n}" if self.n else f"{self.name} is missing"

    def __str__(self) -> str:
        if math.isinf(self.mean):
            return f"{self.name} diverged at {self.n} of {self.n}"
        if math.isnan(self.mean):
            return f"{self.name} n={self.n}"
        interval = "" if math.isnan(self.low) else f" [{self.low:+.3f}, {self.high:+.3f}]"
        return f"{self.name} {self.mean:+.3f}{interval} n={self.n}"


class Part(NamedTuple):
    """One comparison: what was compared, what it says, by which numbers, or why not."""

    what: str
    outcome: Outcome
    numbers: tuple[Estimate, ...] = ()
    why: str = ""


class Claim(NamedTuple):
    """One sentence of the paper. `judge(trials, gaps)` is given the trials of `sweeps` alone."""

    name: str
    statement: str
    place: str
    """Figure or table of the paper, and its own number where it is known."""
    sweeps: tuple[str, ...]
    rule: str
    judge: Callable[[pd.DataFrame, pd.DataFrame], Sequence[Part]]


class Verdict(NamedTuple):
    """A claim at one scale."""

    claim: Claim
    outcome: Outcome
    parts: Sequence[Part]

    @property
    def summary(self) -> str:
        """`5 of 8 reproduced, 1 contradicted`."""
        count = [part.outcome for part in self.parts].count
        words = f"{count(Outcome.REPRODUCED)} of {len(self.parts)} reproduced"
        contradicted = count(Outcome.CONTRADICTED)
        return words + (f", {contradicted} contradicted" if contradicted else "")


ALL_PARTS = (
    "A claim of several parts is reproduced if each of them is, contradicted if one of them is, "
    f"and else not enough data. Trials of fewer than {ENOUGH_UPDATES} updates decide nothing, nor "
    "does a mean of fewer than 2 seeds, or one of which a part of the seeds diverged. Where all "
    "seeds of an arm diverged and those of sync did not, its gap counts as infinite."
)
"""The rule that all claims share, in words."""


def judged(claim: Claim, trials: pd.DataFrame, gaps: pd.DataFrame) -> Verdict:
    """The verdict on a claim, from the trials of its sweeps."""
    longest = max(trials["num_updates"].dropna(), default=0)
    if 0 < longest < ENOUGH_UPDATES:
        why = f"the longest trial has {longest} updates, {ENOUGH_UPDATES} decide something"
        parts: Sequence[Part] = [Part("length of the trials", Outcome.UNDECIDED, why=why)]
    else:
        parts = claim.judge(trials, gaps)
    if not parts:
        why = "no trial of the arms that it is about"
        parts = [Part("trials", Outcome.UNDECIDED, why=why)]
    return Verdict(claim, _together([part.outcome for part in parts]), parts)


def not_run(claim: Claim, scale: str) -> Verdict:
    """The verdict on a claim none of whose sweeps was run at a scale."""
    commands = " or ".join(f"sweep={sweep}" for sweep in claim.sweeps)
    why = f"not run: python -m sweeps {commands} scale={scale}"
    return Verdict(claim, Outcome.UNDECIDED, [Part("trials", Outcome.UNDECIDED, why=why)])


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    if Outcome.CONTRADICTED in outcomes:
        return Outcome.CONTRADICTED
    return Outcome.REPRODUCED if {*outcomes} == {Outcome.REPRODUCED} else Outcome.UNDECIDED
