"""The share of the plain gap that a correction removes, between two limits."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.claims.above import Above, Contrast
from analysis.claims.rule import Number
from analysis.statistics.intervals import Values, ratio_interval

PLAIN = Contrast("the gap of the plain delay", (1.0, 0.0), 0)


@dataclass(frozen=True)
class Removed(Above):
    """`Above` for rows plain and left, with the share as its number.

    That the interval of plain · (1 - limit) - left excludes 0 is what Fieller's interval of the
    share says of the limit.
    """

    def numbers(self, values: Values) -> list[Number]:
        """As in `Rule`."""
        return [share("share removed", values[1], values[0])]


def removes(low: float, high: float | None = None) -> Removed:
    """That more than `low` and less than `high` of the plain gap is removed, where there is one."""
    contrasts = [Contrast(f"the share removed beyond {low:.0%}", (1 - low, -1.0), 1)]
    if high is not None:
        contrasts.append(Contrast(f"the share short of {high:.0%}", (high - 1, 1.0), 1))
    return Removed(tuple(contrasts), PLAIN)


def share(name: str, left: Values, plain: Values) -> Number:
    """The share of a plain gap that is removed, with Fieller's interval."""
    low, high = ratio_interval(left, plain)
    return name, float(1 - left.mean() / plain.mean()), 1 - high, 1 - low, len(plain)
