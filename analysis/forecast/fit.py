"""Weighted nonlinear least squares of many data sets at once (Levenberg and Marquardt)."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Model = Callable[[Values], tuple[Values, Values]]
"""Parameters [sets, k] → predictions [sets, n] and their derivatives [sets, n, k]."""

ROUNDS = 60
SMALLEST, LARGEST = 1e-9, 1e9
"""The smallest and the largest damping."""
CLOSE = 1e-10
"""Relative gain of a round that ends the search."""


class Bounds(NamedTuple):
    """The lowest and the highest value of each parameter, [k]."""

    low: Values
    high: Values


def fitted(model: Model, start: Values, bounds: Bounds, seen: Values, weights: Values) -> Values:
    """The parameters [sets, k] of the smallest Σ weights · (seen − prediction)², each within its
    bounds.

    `start`: [sets, k]; `seen`, `weights`: [sets, n]. A weight of 0 leaves a number out.
    """
    best = np.clip(start, *bounds)
    damping = np.full(len(best), 1e-2)
    predicted, slopes = model(best)
    cost = _cost(seen, predicted, weights)
    for _ in range(ROUNDS):
        tried = np.clip(best + _step(seen - predicted, slopes, weights, damping), *bounds)
        tried_predicted, tried_slopes = model(tried)
        tried_cost = _cost(seen, tried_predicted, weights)
        better = tried_cost < cost
        gain = np.where(better, cost - tried_cost, 0.0)
        best = np.where(better[:, None], tried, best)
        predicted = np.where(better[:, None], tried_predicted, predicted)
        slopes = np.where(better[:, None, None], tried_slopes, slopes)
        damping = np.clip(np.where(better, damping / 4, damping * 4), SMALLEST, LARGEST)
        cost = cost - gain
        if (better & (gain <= CLOSE * cost) | (damping >= LARGEST)).all():
            break
    return best


def _cost(seen: Values, predicted: Values, weights: Values) -> Values:
    return np.asarray((weights * (seen - predicted) ** 2).sum(axis=-1))


def _step(errors: Values, slopes: Values, weights: Values, damping: Values) -> Values:
    """The damped Gauss-Newton step [sets, k]; damped by curvature, as Marquardt does."""
    weighted = slopes * weights[..., None]
    curvature = np.swapaxes(weighted, -1, -2) @ slopes
    downhill = np.swapaxes(weighted, -1, -2) @ errors[..., None]
    diagonal = np.einsum("sii->si", curvature)
    floor = 1e-12 * diagonal.max(axis=-1, keepdims=True) + np.finfo(float).tiny
    damped = damping[:, None] * np.maximum(diagonal, floor) + floor
    return np.asarray(
        np.linalg.solve(curvature + damped[..., None] * np.eye(damped.shape[1]), downhill)[..., 0]
    )
