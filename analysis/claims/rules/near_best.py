"""One value of a setting against the best of those that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.claims.above import Above, Contrast
from analysis.claims.rule import REPRODUCED, SAME, Codes
from analysis.statistics.intervals import Values


@dataclass(frozen=True)
class NearBest(Above):
    """`Above` that is reproduced only where the row of the lowest mean is neither the first nor the
    last: beyond the edge of a grid may be a better one."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """As in `Rule`."""
        codes = super().decide(values, confidence)
        return np.where((codes == REPRODUCED) & _at_edge(values), 0, codes).astype(np.int8)

    def why(self, values: Values) -> str:
        """As in `Rule`."""
        if _at_edge(values):
            return "the best one is at the edge of the grid: beyond may be a better one"
        return super().why(values)


def near_best(coefficients: list[float]) -> NearBest:
    """That the gap at the coefficient 1 is at most SAME of the plain gap above each other one, and
    below the plain gap; rows: the plain delay, then the coefficients, ascending."""
    rows = [0.0, *coefficients]
    one = rows.index(1.0)
    contrasts = [
        _contrast(f"{SAME:.0%} of the plain gap minus (λ=1 minus λ={other:g})", len(rows), one, row)
        for row, other in enumerate(rows)
        if row not in (0, one)
    ]
    helps = tuple(float(row == 0) - float(row == one) for row in range(len(rows)))
    return NearBest(tuple(contrasts), Contrast("what λ=1 removes", helps, one))


def near_best_of_arm(names: Sequence[str], chosen: int) -> NearBest:
    """That the gap at the row `chosen` is at most SAME of itself above each other one; rows: the
    arm at each value of a setting, ascending, above sync at the chosen one."""
    rows = range(len(names))

    def weights(other: int) -> tuple[float, ...]:
        return tuple(float(row == other) - (1 - SAME) * (row == chosen) for row in rows)

    contrasts = [
        Contrast(
            f"{SAME:.0%} of the gap minus ({names[chosen]} minus {name})", weights(other), other
        )
        for other, name in enumerate(names)
        if other != chosen
    ]
    own = tuple(float(row == chosen) for row in rows)
    return NearBest(tuple(contrasts), Contrast(f"the gap at {names[chosen]}", own, chosen))


def _contrast(name: str, num_rows: int, one: int, other: int) -> Contrast:
    weights = [0.0] * num_rows
    weights[0], weights[one], weights[other] = SAME, -1.0, 1.0
    return Contrast(name, tuple(weights), other)


def _at_edge(values: Values) -> Values:
    best = values.mean(axis=-1).argmin(axis=-1)
    return (best == 0) | (best == values.shape[-2] - 1)
