"""Sync's law of the loss and the law of the token tax, as functions of length, batch and size.

    L = E(N) + exp(a − α ln T − β ln B)          so that s = −dL / d ln T = α (L − E)
    χ = tax − 1 = exp(c − p ln T + q ln B + r ln N) [+ floor],   gap = s ln(1 + χ)

T: updates; B: tokens per update; N: parameters. E is a number for each size of the ladder: only
the slope s is forecast, and as in Hoffmann et al. (2203.15556) it does not depend on the size. The
critical batch of the tax is a constant of c. A term whose regressor does not vary is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.forecast.fit import Bounds, Model, Values, fitted

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


@dataclass(frozen=True)
class Scale:
    """The logarithms of settings, from the middle of the ladder; only those that vary.

    `middle`: [3], in the order of REGRESSORS; `varied`: positions of those that vary.
    """

    middle: Values
    varied: tuple[int, ...]

    def of(self, settings: Values) -> Values:
        """[n, 3] settings → [n, 3] logarithms from the middle."""
        return np.log(settings) - self.middle


def scale_of(settings: Values) -> Scale:
    """The scale of a ladder's rungs, [n, 3]."""
    logarithms = np.log(settings)
    varied = [i for i in range(len(REGRESSORS)) if len(np.unique(settings[:, i])) > 1]
    return Scale(logarithms.mean(axis=0), tuple(varied))


@dataclass(frozen=True)
class SyncLaw:
    """L = E(N) + exp(a − α ln T − β ln B). Parameters: a, α, β if batches vary, E of each size."""

    scale: Scale
    settings: Values
    """Settings of the rungs, [n, 3]."""

    def _terms(self, settings: Values) -> Values:
        """[n, 2 or 3]: what a, α and β are multiplied by."""
        updates, batch, _ = self.scale.of(settings).T
        columns = [np.ones_like(updates), -updates, *([-batch] if 1 in self.scale.varied else [])]
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
        return fitted(self.model(), start, Bounds(np.array(low), np.array(high)), losses, weights)

    def slopes(self, parameters: Values, settings: Values) -> Values:
        """s = −dL / d ln T at other settings [m, 3], in nats per e-fold: [sets, m]."""
        terms = self._terms(settings)
        exponents = parameters[:, : terms.shape[1]]
        return np.asarray(exponents[:, 1:2] * np.exp(exponents @ terms.T))


@dataclass(frozen=True)
class TaxLaw:
    """χ = exp(c − p ln T + …) [+ exp(f)]. Parameters: c, the exponents of what varies, f."""

    scale: Scale
    settings: Values
    has_floor: bool

    def _terms(self, settings: Values) -> Values:
        """[n, 1 + varied]: what c and the exponents are multiplied by."""
        varied = self.scale.of(settings)[:, self.scale.varied]
        signs = [SIGNS[REGRESSORS[i]][1] for i in self.scale.varied]
        return np.concatenate([np.ones((len(settings), 1)), varied * signs], axis=1)

    @property
    def num_parameters(self) -> int:
        """How many parameters are fitted."""
        return 1 + len(self.scale.varied) + self.has_floor

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
        num_exponents = len(self.scale.varied)
        floors = [low] if self.has_floor else []
        lowest = np.array([low, *[-STEEPEST] * num_exponents, *floors])
        highest = np.array([high, *[STEEPEST] * num_exponents, *[high] * len(floors)])
        excess = np.expm1(np.clip((gaps / slopes).mean(axis=-1), 0.01, 5))
        start = np.zeros((len(gaps), self.num_parameters))
        start[:, 0] = np.log(np.clip(excess, *TAX_RANGE))
        start[:, 1 + num_exponents :] = start[:, :1] - 2
        return fitted(self.model(slopes), start, Bounds(lowest, highest), gaps, weights)

    def excess(self, parameters: Values, settings: Values) -> Values:
        """χ = tax − 1 at other settings [m, 3]: [sets, m]."""
        falling, floor = self._parts(parameters, self._terms(settings))
        return np.asarray(falling + floor)

    def exponents(self, parameters: Values) -> dict[str, Values]:
        """p, q and r as far as they were fitted, [sets] each, of parameters [sets, k]."""
        names = [SIGNS[REGRESSORS[i]][0] for i in self.scale.varied]
        return dict(zip(names, parameters.T[1:], strict=False))

    def _parts(self, parameters: Values, terms: Values) -> tuple[Values, Values]:
        """What falls, [sets, m], and the floor, [sets, 1]."""
        falling = np.exp(parameters[:, : terms.shape[1]] @ terms.T)
        floor = np.exp(parameters[:, terms.shape[1] :]).sum(axis=-1, keepdims=True)
        return falling, floor


def left_out(settings: Values) -> Sequence[str]:
    """The regressors that do not vary among rungs [n, 3], and so have no term."""
    varied = scale_of(settings).varied
    return [name for i, name in enumerate(REGRESSORS) if i not in varied]
