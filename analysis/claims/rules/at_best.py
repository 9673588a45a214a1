"""Gaps that are each taken at the point where sync is best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.claims.above import Above
from analysis.claims.rule import Codes, Means, Number, number
from analysis.statistics.intervals import Values


@dataclass(frozen=True)
class AtBest(Above):
    """`Above`, where each column is a gap that has several points to choose from: the one of the
    lowest sync loss on the first third of the seeds, which are then not compared.

    A point that is chosen on the seeds compared has a sync loss that is low by luck, and so a large
    gap; one that is chosen for each seed on the others makes seeds depend on each other (simulated:
    the intervals of either kind miss in more than 5 %).
    Rows: for each column, the sync losses of its points, then their gaps.
    """

    points: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        return super().decide(self.columns(values), confidence)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        return super().why(self.columns(values))

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        columns = self.columns(values)
        own = [number(name, one) for name, one in zip(self.names, columns, strict=True)]
        return [*own, *super().numbers(columns)]

    def columns(self, values: Values) -> Values:
        """Shape (..., columns, seeds that did not choose)."""
        num_choosing = max(1, values.shape[-1] // 3)
        found, start = [], 0
        for num_points in self.points:
            sync, gaps = (
                values[..., at : at + num_points, :] for at in (start, start + num_points)
            )
            chosen = sync[..., :num_choosing].mean(axis=-1).argmin(axis=-1)[..., None, None]
            found.append(np.take_along_axis(gaps, chosen, axis=-2)[..., 0, num_choosing:])
            start += 2 * num_points
        return np.stack(found, axis=-2)

    def just_false(self, means: Means) -> list[Means]:
        """As `Above`, with one gap at all points of a column: the verdict is on those chosen."""
        return [self._with_gaps(means, to) for to in super().just_false(self._at_best(means))]

    def just_true(self, means: Means) -> Means:
        """Likewise."""
        return self._with_gaps(means, super().just_true(self._at_best(means)))

    def true(self, means: Means) -> Means:
        """Likewise."""
        return self._with_gaps(means, super().true(self._at_best(means)))

    def placebo(self, means: Means) -> Means:
        """All gaps are 0, losses of sync as they were."""
        return means * self._is_sync()

    def _at_best(self, means: Means) -> Means:
        return self.columns(np.repeat(means[:, None], 2, axis=1))[:, 0]

    def _with_gaps(self, means: Means, gaps: Means) -> Means:
        return np.where(self._is_sync(), means, np.repeat(gaps, [2 * p for p in self.points]))

    def _is_sync(self) -> NDArray[np.bool_]:
        return np.concatenate([np.arange(2 * p) < p for p in self.points])
