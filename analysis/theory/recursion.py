"""Linear filters of sequences, and the closed loop of an optimizer on a quadratic.

Filters are ratios of polynomials in the shift z⁻¹ (the z-transform). The loop is
W(t+1) = W(t) − applied(optimizer(gradient(k · read(W) + n))).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy.linalg import companion, solve_discrete_lyapunov

SHIFT = Polynomial([0.0, 1.0])
"""z⁻¹."""
FIRM = 1e-9
"""A radius within this of 1 counts as 1, where rounding decides."""


@dataclass(frozen=True)
class Filter:
    """y with Σ_j past[j] y_{t−j} = Σ_i now[i] x_{t−i}: `now(z⁻¹) / past(z⁻¹)`.

    The coefficients of a polynomial are by lag, from 0. `past[0]` is 1.
    """

    now: Polynomial
    past: Polynomial

    def __add__(self, other: "Filter") -> "Filter":
        """The sum of both outputs for one input."""
        return Filter(self.now * other.past + other.now * self.past, self.past * other.past)

    def __mul__(self, other: "Filter") -> "Filter":
        """One filter after the other."""
        return Filter(self.now * other.now, self.past * other.past)

    def __rmul__(self, factor: float) -> "Filter":
        return Filter(factor * self.now, self.past)


SAME = Filter(Polynomial([1.0]), Polynomial([1.0]))
"""y_t = x_t."""


def late(lag: int) -> Filter:
    """y_t = x_{t−lag}."""
    return Filter(Polynomial([*[0.0] * lag, 1.0]), SAME.past)


def average(decay: float) -> Filter:
    """The running average y_t = decay · y_{t−1} + (1 − decay) · x_t."""
    return Filter(Polynomial([1.0 - decay]), Polynomial([1.0, -decay]))


def total(decay: float) -> Filter:
    """The running sum y_t = decay · y_{t−1} + x_t."""
    return Filter(SAME.now, Polynomial([1.0, -decay]))


def change(lag: int = 1) -> Filter:
    """y_t = x_t − x_{t−lag}."""
    return SAME + -1.0 * late(lag)


@dataclass(frozen=True)
class Hooks:
    """A delay and what is done about it.

    `read`: weights W → those at which the gradient is taken, delay included. `gradient`: raw
    gradients → what the optimizer gets. `applied`: updates u → W(t) − W(t+1).
    """

    read: Filter
    gradient: Filter = SAME
    applied: Filter = SAME


@dataclass(frozen=True)
class Loop:
    """One coordinate of the weights under an optimizer, a delay and its correction.

    `optimizer` maps gradients to updates in units of lr and preconditioner. So everything depends
    on one number k, the learning rate times the curvature in the preconditioner's norm.
    """

    optimizer: Filter
    hooks: Hooks

    @cached_property
    def change(self) -> Filter:
        """From raw gradients to W(t) − W(t+1)."""
        return self.hooks.gradient * self.optimizer * self.hooks.applied

    def characteristic(self, k: float) -> NDArray[np.float64]:
        """a with Σ_j a[j] W(t−j) = 0 for every t, without noise; by lag, a[0] = 1.

        a(z⁻¹) = (1 − z⁻¹) D + k z⁻¹ N, where N / D is the way from W to W(t) − W(t+1) at k = 1.
        """
        alone, of_k = self._parts
        return alone + k * of_k

    @cached_property
    def _parts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(1 − z⁻¹) D and z⁻¹ N, by lag, of one length."""
        way = self.change * self.hooks.read
        alone, of_k = ((1 - SHIFT) * way.past).coef, (SHIFT * way.now).coef
        length = max(len(alone), len(of_k))
        return np.pad(alone, (0, length - len(alone))), np.pad(of_k, (0, length - len(of_k)))

    def state_matrix(self, k: float) -> NDArray[np.float64]:
        """(W(t), …, W(t−n+1)) → (W(t+1), …, W(t−n+2)): the companion of `characteristic`."""
        return companion(self.characteristic(k))

    def radius(self, k: float) -> float:
        """The largest absolute eigenvalue: W grows, or shrinks, by it per update."""
        return float(np.abs(np.linalg.eigvals(self.state_matrix(k))).max())

    def is_stable(self, k: float) -> bool:
        """Whether no root lies outside of the unit circle."""
        return self.radius(k) <= 1 + FIRM

    def noise(self, k: float) -> float:
        """The stationary variance of W under white noise of variance 1 in the gradients.

        In units of (lr · P⁻¹)²; infinite where the loop is not stable. W is b filtered by 1 / a, so
        with the state x of 1 / a, x ← A x + e₁ n, it is bᵀ Σ b with Σ = A Σ Aᵀ + e₁ e₁ᵀ.
        """
        if self.radius(k) >= 1 - FIRM:
            return float("inf")
        matrix = self.state_matrix(k)
        driven = np.zeros_like(matrix)
        driven[0, 0] = 1.0
        # z⁻¹ is left out of b: it moves W in time and changes no variance.
        b = np.zeros(len(matrix))
        now = (self.change.now * self.hooks.read.past).coef
        b[: len(now)] = now
        return float(b @ solve_discrete_lyapunov(matrix, driven) @ b)
