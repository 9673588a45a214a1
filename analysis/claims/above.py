"""Weighted sums of paired numbers that must lie above 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.claims.rule import Codes, Mask, Means, Normal, Number, codes_of, number
from analysis.statistics.intervals import Values, mean_intervals, moments


class Contrast(NamedTuple):
    """A weighted sum of rows. `moved`: the row that is moved where the sum shall be 0."""

    name: str
    weights: tuple[float, ...]
    moved: int = -1

    def of(self, values: Values) -> Values:
        """Shape (..., seeds). A row of weight 0 may be infinite."""
        terms = [w * values[..., row, :] for row, w in enumerate(self.weights) if w]
        with np.errstate(invalid="ignore"):
            return np.sum(terms, axis=0)

    def at_zero(self, means: Means) -> Means:
        """The means with the moved row where the sum is 0."""
        found = means.copy()
        found[self.moved] -= self.of(means[:, None])[0] / self.weights[self.moved]
        return found


@dataclass(frozen=True)
class Above(Normal):
    """Reproduced where the interval of every contrast lies above 0, contradicted where one lies
    below 0; with `needed`, undecided unless that contrast's interval lies above 0."""

    contrasts: tuple[Contrast, ...]
    needed: Contrast | None = None

    @property
    def num_refuting(self) -> int:
        """As in `Rule`."""
        return len(self.contrasts)

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        sums = [moments(one.of(values)) for one in self.contrasts]
        lows = [one.interval()[0] for one in sums]
        highs = [one.interval(confidence)[1] for one in sums]
        found = np.all(np.greater(lows, 0), axis=0)
        refuted = np.any(np.less(highs, 0), axis=0)
        return codes_of(found, refuted, _is_positive(self.needed, values))

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        if self.needed is not None and not _is_positive(self.needed, values):
            return f"{self.needed.name} may be 0"
        ends = {one.name: mean_intervals(one.of(values)) for one in self.contrasts}
        below = [name for name, (_, high) in ends.items() if high < 0]
        if below:
            return (
                f"{' and '.join(below)}: below 0 by 95 %, which is too little among so many parts"
            )
        either = [name for name, (low, _) in ends.items() if not low > 0]
        return f"{' and '.join(either)}: may lie on either side of 0"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`; a contrast of one row is that row, which is shown already."""
        several = [one for one in self.contrasts if np.count_nonzero(one.weights) > 1]
        return [number(one.name, one.of(values)) for one in several]

    def just_false(self, means: Means) -> list[Means]:
        """One contrast is 0, the others are as they were, or else just as positive."""
        return [one.at_zero(self._mirrored(means)) for one in self.contrasts]

    def just_true(self, means: Means) -> Means:
        """Every contrast is 0, as far as they can be together."""
        for one in self.contrasts:
            means = one.at_zero(means)
        return means

    def placebo(self, means: Means) -> Means:
        """All rows are 0."""
        return np.zeros_like(means)

    def true(self, means: Means) -> Means:
        """As observed, each negative contrast mirrored."""
        return self._mirrored(means)

    def _mirrored(self, means: Means) -> Means:
        for one in self.contrasts:
            at_zero = one.at_zero(means)
            if one.of(means[:, None])[0] < 0:
                means = 2 * at_zero - means
        return means


def _is_positive(contrast: Contrast | None, values: Values) -> Mask | bool:
    return contrast is None or mean_intervals(contrast.of(values))[0] > 0
