"""A change, up or down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.claims.rule import SAME, Codes, Means, Normal, Number, codes_of, number
from analysis.statistics.intervals import Values, mean_intervals


@dataclass(frozen=True)
class Either(Normal):
    """Reproduced where a change is shown, up or down; contradicted where it is surely within SAME
    of the first row. Rows: the quantity at one end, and at the other."""

    name: str
    num_refuting: int = 1

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        low, high = mean_intervals(self._change(values))
        first, change = values[..., 0, :], self._change(values)
        within = [mean_intervals(SAME * first + sign * change, confidence)[0] for sign in (1, -1)]
        found = (low > 0) | (high < 0)
        return codes_of(found, np.all(np.greater(within, 0), axis=0) & ~found)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        return f"{self.name}: may be 0, or more than {SAME:.0%}"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        return [number(self.name, self._change(values))]

    def just_false(self, means: Means) -> list[Means]:
        """No change."""
        return [np.array([means[0], means[0]])]

    def just_true(self, means: Means) -> Means:
        """A change of SAME."""
        return np.array([means[0], (1 + SAME) * means[0]])

    def placebo(self, means: Means) -> Means:
        """Both are 0."""
        return np.zeros_like(means)

    def true(self, means: Means) -> Means:
        """As observed."""
        return means

    @staticmethod
    def _change(values: Values) -> Values:
        with np.errstate(invalid="ignore"):
            return values[..., 1, :] - values[..., 0, :]
