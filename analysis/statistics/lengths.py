"""Final losses of runs by their length: interpolated, never extrapolated.

Each run has its own learning-rate schedule, which ends with it. A loss in the middle of a longer
run cannot stand for the final loss of a shorter one: its learning rate has not decayed yet.

Final losses fall, and ever more slowly: they are a convex function of the length. So a chord, the
straight line between two of them, lies above the truth: an interpolated loss is a little too high,
and a length too large. Of a law that is convex in the logarithm of the length the same holds for
chords in the logarithm, which lie lower. Some laws are convex in the length alone: an exponential
one, in its first part.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

ByLength = Mapping[int, float]
"""Final losses by the number of updates of the run."""


class StandIn(NamedTuple):
    """Runs that stand for one of another length: the weights, which sum to 1, by their length;
    empty if no runs can."""

    weights: Mapping[int, float]

    @property
    def updates(self) -> float:
        """The mean length; NaN without runs."""
        weights = self.weights
        return sum(share * length for length, share in weights.items()) if weights else np.nan

    def loss(self, finals: ByLength) -> float:
        """The weighted mean of the final losses of one seed; NaN if a run is missing, infinite if
        one diverged."""
        if not self.weights or not self.weights.keys() <= finals.keys():
            return np.nan
        return sum(share * finals[length] for length, share in self.weights.items())


def no_lower(lengths: Collection[int], updates: float) -> StandIn:
    """Runs that end no lower than one of so many updates.

    They are the run of that length to within one update, else the chord between its neighbours,
    which lies above a convex law, else the longest run that is shorter.
    """
    shorter, longer = _next_to(lengths, updates)
    if shorter is None or longer is None:
        return StandIn({shorter: 1.0} if shorter is not None else {})
    if shorter == longer:
        return StandIn({shorter: 1.0})
    share = (updates - shorter) / (longer - shorter)
    return StandIn({shorter: 1 - share, longer: share})


def no_higher(lengths: Collection[int], updates: float) -> StandIn:
    """Runs that end no higher than one of so many updates: the run of that length to within one
    update, else the shortest one that is longer."""
    _, longer = _next_to(lengths, updates)
    return StandIn({} if longer is None else {longer: 1.0})


def _next_to(lengths: Collection[int], updates: float) -> tuple[int | None, int | None]:
    """The nearest lengths below and above, both the same one if it is less than an update away."""
    nearest = min(lengths, key=lambda length: abs(length - updates), default=None)
    if nearest is not None and abs(nearest - updates) < 1:
        return nearest, nearest
    shorter = max((length for length in lengths if length < updates), default=None)
    return shorter, min((length for length in lengths if length > updates), default=None)


def length_to(finals: ByLength, level: float) -> float:
    """Length of the run that ends at `level`: infinite if no run ends as low, 0 if all end lower.

    Noise can let a longer run end higher than a shorter one. Their losses are first replaced by the
    nearest ones that never rise (isotonic regression). NaN if a loss is not known.
    """
    lengths, losses = _sorted(finals)
    if np.isnan(losses).any():
        return np.nan
    falling = isotonic_regression(losses, increasing=False).x
    if falling[-1] > level:
        return np.inf
    if falling[0] < level:
        return 0.0
    # np.interp wants the losses to rise, so it gets them from the longest run to the shortest.
    return float(np.exp(np.interp(level, falling[::-1], np.log(lengths)[::-1])))


def slope_at(finals: ByLength, updates: int) -> float:
    """-dL / d ln T of final losses at a length, in nats per token for each e-fold of the length.

    It is the least-squares line through that length and its nearest neighbours, one on each side if
    there are two. NaN without the length itself or without a neighbour.
    """
    known = {length: loss for length, loss in finals.items() if np.isfinite(loss)}
    shorter = [length for length in known if length < updates]
    longer = [length for length in known if length > updates]
    near = [*([max(shorter)] if shorter else []), *([min(longer)] if longer else [])]
    if updates not in known or not near:
        return np.nan
    lengths = [updates, *near]
    return -float(np.polyfit(np.log(lengths), [known[length] for length in lengths], deg=1)[0])


def _sorted(finals: ByLength) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lengths, ascending, and their losses."""
    lengths = sorted(finals)
    return np.array(lengths, dtype=float), np.array([finals[length] for length in lengths])
