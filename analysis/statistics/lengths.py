"""Final losses of runs by their length: interpolated, never extrapolated.

Each run has its own learning-rate schedule, which ends with it. A loss in the middle of a longer
run cannot stand for the final loss of a shorter one: its learning rate has not decayed yet.

Final losses fall, and ever more slowly: they are a convex function of the length. So a chord, the
straight line between two of them, lies above the truth: an interpolated loss is a little too high,
and a length too large. Of a law that is convex in the logarithm of the length the same holds for
chords in the logarithm, which lie lower. Some laws are convex in the length alone: an exponential
one, in its first part.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipegap.analysis.statistics.intervals import Values, ratio_interval

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


class Crossing(NamedTuple):
    """The length of the run that ends at a level, with the ends of its interval."""

    length: float
    low: float
    high: float


def bracket(finals: Sequence[ByLength], level: float) -> tuple[int, int] | float:
    """The neighbouring lengths between whose mean losses the level lies; infinite if no length ends
    as low, 0 if all end lower. Each seed of `finals` has the same lengths."""
    lengths = sorted(finals[0])
    means = [float(np.mean([losses[length] for losses in finals])) for length in lengths]
    for index in range(len(lengths) - 1):
        if means[index] >= level >= means[index + 1] < means[index]:
            return lengths[index], lengths[index + 1]
    return np.inf if means[-1] > level else 0.0


def crossing(
    above: Values, below: Values, levels: Values, lengths: tuple[int, int], confidence: float
) -> Crossing:
    """The length at which losses fall to `levels`, from runs of the shorter and of the longer of
    two lengths that end `above` and `below` them; one value per seed.

    The share of the way is a ratio of two means over seeds, with Fieller's interval. The length is
    interpolated in the logarithm. The interval covers every law that is convex in the length and
    falls no faster than 1 / T: between and beyond the two lengths such a law lies between the two
    lines that are straight in T and in 1 / T. NaN if the losses are not shown to fall; one seed has
    no interval.
    """
    way, whole = above - levels, above - below
    share, (low, high) = float(way.mean() / whole.mean()), ratio_interval(way, whole, confidence)
    if len(way) > 1 and np.isnan(low):
        return Crossing(np.nan, np.nan, np.nan)
    straight = [
        _along(coordinate, lengths, end) for coordinate in COORDINATES for end in (low, high)
    ]
    return Crossing(_along(COORDINATES[1], lengths, share), min(straight), max(straight))


class Coordinate(NamedTuple):
    """A coordinate in which a law may be a straight line: rising in the length, and its inverse."""

    of_length: Callable[[float], float]
    to_length: Callable[[float], float]


COORDINATES = (
    Coordinate(float, lambda x: max(x, 0.0)),
    Coordinate(np.log, np.exp),
    Coordinate(lambda length: -1 / length, lambda x: -1 / x if x < 0 else np.inf),
)
"""T, ln T and 1 / T: power laws T^-c with c of -1, 0 and 1, with any floor."""


def _along(coordinate: Coordinate, lengths: tuple[int, int], share: float) -> float:
    """The length at a share of the way between two lengths, in a coordinate."""
    if np.isnan(share):
        return np.nan
    shorter, longer = map(coordinate.of_length, lengths)
    with np.errstate(over="ignore"):
        return float(coordinate.to_length(shorter + share * (longer - shorter)))
