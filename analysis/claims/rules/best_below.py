"""The best of an arm against the best of sync."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.claims.rule import Codes, Means, Normal, Number, codes_of
from analysis.statistics.best import held_out_gaps, interval_of_best
from analysis.statistics.intervals import CONFIDENCE, Values


@dataclass(frozen=True)
class BestBelow(Normal):
    """Reproduced where the best of an arm is surely less than `margin` above sync's best,
    contradicted where it surely is more; each best chosen for each seed on the others, and the
    interval encloses that of the same seeds. Rows: sync at each point, then the arm."""

    margin: float
    name: str
    num_sync: int
    """How many rows are sync's."""
    num_refuting: int = 1

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        high, low = self._ends(values, CONFIDENCE)[1], self._ends(values, confidence)[0]
        return codes_of(high < self.margin, low > self.margin)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        return f"holds values on both sides of {self.margin:g}"

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        low, high = self._ends(values, CONFIDENCE)
        gaps = held_out_gaps(*self._arms(values))
        return [(self.name, float(gaps.mean()), float(low), float(high), len(gaps))]

    def just_false(self, means: Means) -> list[Means]:
        """The bests differ by the margin."""
        sync, arm = self._arms(means[:, None])
        by = self.margin - (arm.min() - sync.min())
        return [means + by * self._is_arm(means)]

    def just_true(self, means: Means) -> Means:
        """Likewise."""
        return self.just_false(means)[0]

    def placebo(self, means: Means) -> Means:
        """Likewise: without a gap, the claim would be true."""
        return self.just_false(means)[0]

    def true(self, means: Means) -> Means:
        """The bests are alike."""
        return self.just_false(means)[0] - self.margin * self._is_arm(means)

    def _ends(self, values: Values, confidence: float) -> tuple[Values, Values]:
        sync, arm = self._arms(values)
        same = _at(arm, arm.mean(axis=-1)) - _at(sync, sync.mean(axis=-1))
        return interval_of_best(same, held_out_gaps(sync, arm), confidence)

    def _arms(self, values: Values) -> tuple[Values, Values]:
        return values[..., : self.num_sync, :], values[..., self.num_sync :, :]

    def _is_arm(self, means: Means) -> NDArray[np.bool_]:
        return np.arange(len(means)) >= self.num_sync


def _at(losses: Values, by: Values) -> Values:
    chosen = by.argmin(axis=-1)[..., None, None]
    return np.take_along_axis(losses, chosen, axis=-2)[..., 0, :]
