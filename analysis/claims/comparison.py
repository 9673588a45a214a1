"""What a rule is applied to: numbers of the same seeds, one row per quantity."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.claims.rule import ClaimRule, Estimate, estimate
from analysis.statistics.intervals import Values


class Row(NamedTuple):
    """A quantity: one value per seed, infinite where the trial diverged and sync's did not."""

    name: str
    by_seed: pd.Series
    shown: bool = True

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
        table = pd.concat([row.by_seed for row in self.rows], axis=1, join="inner")
        return table.sort_index().to_numpy(dtype=float).T

    @cached_property
    def flaw(self) -> str:
        """Why it decides nothing; empty if it can decide."""
        flaws = dict.fromkeys(row.flaw for row in self.rows if row.flaw)
        shared = self.values.shape[1]
        few = f"{shared} seeds are in all of its arms" if not flaws and shared < 2 else ""
        return self.reason or "; ".join(flaws) or few

    @property
    def numbers(self) -> tuple[Estimate, ...]:
        """What is compared, and the paired numbers that decide."""
        paired = [] if self.flaw else self.rule.numbers(self.values)
        return (*(row.estimate for row in self.rows if row.shown), *paired)
