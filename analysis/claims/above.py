"""Weighted sums of paired numbers that must lie above 0, and the rules that are made of such."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipegap.analysis.claims.rule import (
    REPRODUCED,
    SAME,
    ClaimRule,
    Codes,
    Estimate,
    Mask,
    codes_of,
    estimate,
)
from pipegap.analysis.statistics.intervals import Values, mean_intervals, moments, share_interval


class Contrast(NamedTuple):
    """A weighted sum of rows."""

    name: str
    weights: tuple[float, ...]

    def of(self, values: Values) -> Values:
        """Shape (..., seeds). A row of weight 0 may be infinite."""
        terms = [w * values[..., row, :] for row, w in enumerate(self.weights) if w]
        with np.errstate(invalid="ignore"):
            return np.sum(terms, axis=0)


@dataclass(frozen=True)
class Above(ClaimRule):
    """Reproduced where the interval of every contrast lies above 0, contradicted where one lies
    below 0; with `needed`, undecided unless that contrast's interval lies above 0."""

    contrasts: tuple[Contrast, ...]
    needed: Contrast | None = None

    @property
    def num_refuting(self) -> int:
        """How many contrasts there are."""
        return len(self.contrasts)

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether all contrasts lie above 0, or one of them below."""
        sums = [moments(contrast.of(values)) for contrast in self.contrasts]
        lows = [sum_of_rows.interval()[0] for sum_of_rows in sums]
        highs = [sum_of_rows.interval(confidence)[1] for sum_of_rows in sums]
        shown = np.all(np.greater(lows, 0), axis=0)
        refuted = np.any(np.less(highs, 0), axis=0)
        return codes_of(shown, refuted, _is_positive(self.needed, values))

    def why(self, values: Values) -> str:
        """The contrasts whose intervals hold 0, or lie below it by too little."""
        if self.needed is not None and not _is_positive(self.needed, values):
            return f"{self.needed.name} may be 0"
        ends = {contrast.name: mean_intervals(contrast.of(values)) for contrast in self.contrasts}
        below = [name for name, (_, high) in ends.items() if high < 0]
        if below:
            return (
                f"{' and '.join(below)}: below 0 by 95 %, which is too little among so many parts"
            )
        either = [name for name, (low, _) in ends.items() if not low > 0]
        return f"{' and '.join(either)}: may lie on either side of 0"

    def numbers(self, values: Values) -> list[Estimate]:
        """Each contrast of several rows; that of one row is shown already."""
        several = [each for each in self.contrasts if np.count_nonzero(each.weights) > 1]
        return [estimate(contrast.name, contrast.of(values)) for contrast in several]


def _is_positive(contrast: Contrast | None, values: Values) -> Mask | bool:
    return contrast is None or mean_intervals(contrast.of(values))[0] > 0


@dataclass(frozen=True)
class Removed(Above):
    """`Above` for rows plain and left, with the share as its number.

    That the interval of plain · (1 - limit) - left excludes 0 is what Fieller's interval of the
    share says of the limit.
    """

    def numbers(self, values: Values) -> list[Estimate]:
        """The share of the plain gap that is removed."""
        return [share("share removed", values[1], values[0])]


def removes(low: float, high: float | None = None) -> Removed:
    """That more than `low` and less than `high` of the plain gap is removed, where there is one."""
    contrasts = [Contrast(f"the share removed beyond {low:.0%}", (1 - low, -1.0))]
    if high is not None:
        contrasts.append(Contrast(f"the share short of {high:.0%}", (high - 1, 1.0)))
    return Removed(tuple(contrasts), Contrast("the gap of the plain delay", (1.0, 0.0)))


def share(name: str, left: Values, plain: Values) -> Estimate:
    """The share of a plain gap that is removed, with its interval where the gap is not weak."""
    low, high = share_interval(left, plain)
    return Estimate(name, float(1 - left.mean() / plain.mean()), 1 - high, 1 - low, len(plain))


@dataclass(frozen=True)
class NearBest(Above):
    """`Above` that is reproduced only where the row of the lowest mean is neither the first nor the
    last: beyond the edge of a grid may be a better one."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether all contrasts lie above 0 inside of the grid, or one of them below."""
        codes = super().decide(values, confidence)
        return np.where((codes == REPRODUCED) & _at_edge(values), 0, codes).astype(np.int8)

    def why(self, values: Values) -> str:
        """That the best row is at the edge, or the contrasts whose intervals hold 0."""
        if _at_edge(values):
            return "the best one is at the edge of the grid: beyond may be a better one"
        return super().why(values)


def near_best(coefficients: list[float]) -> NearBest:
    """That the gap at the coefficient 1 is at most SAME of the plain gap above each other one, and
    below the plain gap; rows: the plain delay, then the coefficients, ascending."""
    rows = [0.0, *coefficients]
    at_one = rows.index(1.0)
    helps = tuple(float(row == 0) - float(row == at_one) for row in range(len(rows)))
    near = _near([f"λ={value:g}" for value in rows], at_one, 0, "the plain gap")
    return NearBest(near, Contrast("what λ=1 removes", helps))


def near_best_of_arm(names: Sequence[str], chosen: int) -> NearBest:
    """That the gap at the row `chosen` is at most SAME of itself above each other one; rows: the
    arm at each value of a setting, ascending, above sync at the chosen one."""
    own = tuple(float(row == chosen) for row in range(len(names)))
    near = _near(names, chosen, chosen, "the gap")
    return NearBest(near, Contrast(f"the gap at {names[chosen]}", own))


def _near(names: Sequence[str], chosen: int, base: int, gap: str) -> tuple[Contrast, ...]:
    """For each other row: SAME of the row `base`, minus what `chosen` lies above the other one."""
    rows = range(len(names))
    return tuple(
        Contrast(
            f"{SAME:.0%} of {gap} minus ({names[chosen]} minus {names[other]})",
            tuple(
                SAME * (row == base) - float(row == chosen) + float(row == other) for row in rows
            ),
        )
        for other in rows
        if other not in (base, chosen)
    )


def _at_edge(values: Values) -> Values:
    best = values.mean(axis=-1).argmin(axis=-1)
    return (best == 0) | (best == values.shape[-2] - 1)
