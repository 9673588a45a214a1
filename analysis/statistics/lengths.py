"""Final losses of runs by their length: interpolated in the logarithm, never extrapolated.

Each run has its own learning-rate schedule, which ends with it. A loss in the middle of a longer
run cannot stand for the final loss of a shorter one: its learning rate has not decayed yet.

Final losses fall ever more slowly with the logarithm of the length, so a straight line between two
of them lies above the truth: an interpolated loss is a little too high, and a length too large.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

ByLength = Mapping[int, float]
"""Final losses by the number of updates of the run."""


def loss_after(finals: ByLength, updates: float) -> float:
    """Final loss of a run of so many updates; NaN outside the lengths of `finals`."""
    lengths, losses = _sorted(finals)
    return float(np.interp(np.log(updates), np.log(lengths), losses, left=np.nan, right=np.nan))


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
