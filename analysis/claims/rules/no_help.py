"""Corrections that do not help, at any coefficient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.claims.rule import SAME, Codes, Means, Normal, Number, codes_of
from analysis.claims.rules.removed import share
from analysis.statistics.intervals import Values, mean_intervals


@dataclass(frozen=True)
class NoHelp(Normal):
    """Reproduced where each row surely removes less than SAME of the first row, although the last
    one changes it; contradicted where one surely removes something and its neighbours do in the
    mean. Rows: the gap of the plain delay, and that of each coefficient, ascending."""

    coefficients: tuple[float, ...]

    @property
    def num_refuting(self) -> int:
        """As in `Rule`."""
        return len(self.coefficients)

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        plain, removed = self._removed(values)
        small = mean_intervals(SAME * plain - removed)[0] > 0
        low, high = mean_intervals(removed[..., -1, :])
        changed = (low > 0) | (high < 0)
        positive = removed.mean(axis=-1) > 0
        beside = np.ones_like(positive)
        beside[..., 1:] &= positive[..., :-1]
        beside[..., :-1] &= positive[..., 1:]
        helps = (mean_intervals(removed, confidence)[0] > 0) & beside
        needed = mean_intervals(values[..., 0, :])[0] > 0
        return codes_of(small.all(axis=-1) & changed, helps.any(axis=-1), needed)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        if not mean_intervals(values[0])[0] > 0:
            return "the gap of the plain delay may be 0"
        plain, removed = self._removed(values)
        small = mean_intervals(SAME * plain - removed)[0] > 0
        large = [f"{c:g}" for c, one in zip(self.coefficients, small, strict=True) if not one]
        if large:
            return f"λ={', '.join(large)} may remove {SAME:.0%} or more"
        return "the largest coefficient does not change the loss for sure"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        _, removed = self._removed(values)
        return [
            share(f"share removed at λ={c:g}", values[0] - one, values[0])
            for c, one in zip(self.coefficients, removed, strict=True)
        ]

    def just_false(self, means: Means) -> list[Means]:
        """One coefficient removes SAME of the gap, the others as in `true`."""
        found = []
        for row in range(1, len(means)):
            at = self.true(means)
            at[row] = (1 - SAME) * means[0]
            found.append(at)
        return found

    def just_true(self, means: Means) -> Means:
        """No coefficient removes anything."""
        return np.full_like(means, means[0])

    def placebo(self, means: Means) -> Means:
        """All rows are 0."""
        return np.zeros_like(means)

    def true(self, means: Means) -> Means:
        """No coefficient removes anything, and the largest harms by as much."""
        return np.append(self.just_true(means)[:-1], 2 * means[0])

    @staticmethod
    def _removed(values: Values) -> tuple[Values, Values]:
        plain = values[..., :1, :]
        return plain, plain - values[..., 1:, :]
