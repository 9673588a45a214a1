"""Sync's law of the loss and the law of the token tax, as functions of length, batch and size.

    L = E(N) + exp(a − α ln T − β ln B)          so that s = −dL / d ln T = α (L − E)
    χ = tax − 1 = exp(c − p ln T + q ln B + r ln N) [+ floor],   gap = s ln(1 + χ)

T: updates; B: tokens per update; N: parameters. E is a number for each size of the ladder: only
the slope s is forecast, and as in Hoffmann et al. (2203.15556) it does not depend on the size. The
critical batch of the tax is a constant of c. A term whose regressor does not vary is left out.

Many data sets are fitted at once, by weighted nonlinear least squares (Levenberg and Marquardt).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analysis.statistics.intervals import Values

REGRESSORS = ("updates", "batch", "parameters")
"""The order of the columns of every array of settings."""
SIGNS = {"updates": ("p", -1.0), "batch": ("q", 1.0), "parameters": ("r", 1.0)}
"""A regressor → its exponent in the law of the tax, and the sign in front of it."""
STEEPEST = 3.0
"""The largest exponent that is tried, in absolute value: beyond it a fit follows noise."""
TAX_RANGE = (1e-5, 1e3)
"""Of each term of tax − 1 at the middle of the ladder: below it nothing can be measured."""
ALPHA_RANGE = (0.01, STEEPEST)
FORMS = {"floor": True, "no floor": False}
"""Name of a form → whether the tax has a floor that no length removes."""
ROUNDS = 60
"""Of a fit, at most."""
SMALLEST, LARGEST = 1e-9, 1e9
"""The smallest and the largest damping."""
CLOSE = 1e-10
"""Relative gain of a round that ends the search."""
Model = Callable[[Values], tuple[Values, Values]]
"""Parameters [sets, k] → predictions [sets, n] and their derivatives [sets, n, k]."""
Bounds = tuple[Values, Values]
"""The lowest and the highest value of each parameter, [k]."""


@dataclass(frozen=True)
class Law:
    """A law that is fitted to rungs."""

    settings: Values
    """Settings of the rungs, [n, 3], in the order of REGRESSORS."""

    @cached_property
    def varied(self) -> list[int]:
        """Positions of the regressors that vary among the rungs."""
        return [i for i, column in enumerate(self.settings.T) if len(np.unique(column)) > 1]

    def logarithms(self, settings: Values) -> Values:
        """[n, 3] settings → [n, 3] logarithms from the middle of the rungs."""
        return np.log(settings) - np.log(self.settings).mean(axis=0)


@dataclass(frozen=True)
class SyncLaw(Law):
    """L = E(N) + exp(a − α ln T − β ln B). Parameters: a, α, β if batches vary, E of each size."""

    def _terms(self, settings: Values) -> Values:
        """[n, 2 or 3]: what a, α and β are multiplied by."""
        updates, batch, _ = self.logarithms(settings).T
        columns = [np.ones_like(updates), -updates, *([-batch] if 1 in self.varied else [])]
        return np.stack(columns, axis=-1)

    @property
    def num_parameters(self) -> int:
        """How many parameters are fitted."""
        return self._terms(self.settings).shape[1] + len(np.unique(self.settings[:, 2]))

    def model(self) -> Model:
        """Parameters → losses of the rungs."""
        terms = self._terms(self.settings)
        sizes = self.settings[:, 2:] == np.unique(self.settings[:, 2])

        def predict(parameters: Values) -> tuple[Values, Values]:
            exponents, levels = np.split(parameters, [terms.shape[1]], axis=-1)
            falling = np.exp(exponents @ terms.T)
            slopes = falling[..., None] * terms
            of_levels = np.broadcast_to(sizes.astype(float), (*falling.shape, sizes.shape[1]))
            return falling + levels @ sizes.T, np.concatenate([slopes, of_levels], axis=-1)

        return predict

    def fit(self, losses: Values, weights: Values) -> Values:
        """Parameters [sets, k] of losses and weights [sets, n]."""
        num_terms = self._terms(self.settings).shape[1]
        num_levels = self.num_parameters - num_terms
        most = float(losses.max())
        low = [np.log(1e-4), ALPHA_RANGE[0], *[-STEEPEST] * (num_terms - 2), *[0.0] * num_levels]
        high = [np.log(most), ALPHA_RANGE[1], *[STEEPEST] * (num_terms - 2), *[most] * num_levels]
        lowest = losses.min(axis=-1, keepdims=True)
        start = np.zeros((len(losses), self.num_parameters))
        start[:, 0], start[:, 1] = np.log(lowest[:, 0] / 2), 0.3
        start[:, num_terms:] = lowest / 2
        return fitted(self.model(), start, (np.array(low), np.array(high)), losses, weights)

    def slopes(self, parameters: Values, settings: Values) -> Values:
        """s = −dL / d ln T at other settings [m, 3], in nats per e-fold: [sets, m]."""
        terms = self._terms(settings)
        exponents = parameters[:, : terms.shape[1]]
        return np.asarray(exponents[:, 1:2] * np.exp(exponents @ terms.T))


@dataclass(frozen=True)
class TaxLaw(Law):
    """χ = exp(c − p ln T + …) [+ exp(f)]. Parameters: c, the exponents of what varies, f."""

    has_floor: bool

    def _terms(self, settings: Values) -> Values:
        """[n, 1 + varied]: what c and the exponents are multiplied by."""
        varied = self.logarithms(settings)[:, self.varied]
        signs = [SIGNS[REGRESSORS[i]][1] for i in self.varied]
        return np.concatenate([np.ones((len(settings), 1)), varied * signs], axis=1)

    @property
    def num_parameters(self) -> int:
        """How many parameters are fitted."""
        return 1 + len(self.varied) + self.has_floor

    def model(self, slopes: Values) -> Model:
        """Parameters → gaps of the rungs; `slopes`: sync's s there, [sets, n]."""
        terms = self._terms(self.settings)

        def predict(parameters: Values) -> tuple[Values, Values]:
            falling, floor = self._parts(parameters, terms)
            excess = falling + floor
            of_excess = slopes / (1 + excess)
            derivatives = [(of_excess * falling)[..., None] * terms]
            if self.has_floor:
                derivatives.append((of_excess * floor)[..., None])
            return slopes * np.log1p(excess), np.concatenate(derivatives, axis=-1)

        return predict

    def fit(self, gaps: Values, weights: Values, slopes: Values) -> Values:
        """Parameters [sets, k] of gaps, weights and slopes [sets, n]."""
        low, high = np.log(TAX_RANGE)
        num_exponents = len(self.varied)
        floors = [low] if self.has_floor else []
        lowest = np.array([low, *[-STEEPEST] * num_exponents, *floors])
        highest = np.array([high, *[STEEPEST] * num_exponents, *[high] * len(floors)])
        excess = np.expm1(np.clip((gaps / slopes).mean(axis=-1), 0.01, 5))
        start = np.zeros((len(gaps), self.num_parameters))
        start[:, 0] = np.log(np.clip(excess, *TAX_RANGE))
        start[:, 1 + num_exponents :] = start[:, :1] - 2
        return fitted(self.model(slopes), start, (lowest, highest), gaps, weights)

    def excess(self, parameters: Values, settings: Values) -> Values:
        """χ = tax − 1 at other settings [m, 3]: [sets, m]."""
        falling, floor = self._parts(parameters, self._terms(settings))
        return np.asarray(falling + floor)

    def exponents(self, parameters: Values) -> dict[str, Values]:
        """p, q and r as far as they were fitted, [sets] each, of parameters [sets, k]."""
        names = [SIGNS[REGRESSORS[i]][0] for i in self.varied]
        return dict(zip(names, parameters.T[1:], strict=False))

    def _parts(self, parameters: Values, terms: Values) -> tuple[Values, Values]:
        """What falls, [sets, m], and the floor, [sets, 1]."""
        falling = np.exp(parameters[:, : terms.shape[1]] @ terms.T)
        floor = np.exp(parameters[:, terms.shape[1] :]).sum(axis=-1, keepdims=True)
        return falling, floor


def left_out(settings: Values) -> Sequence[str]:
    """The regressors that do not vary among rungs [n, 3], and so have no term."""
    varied = Law(settings).varied
    return [name for i, name in enumerate(REGRESSORS) if i not in varied]


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
