"""Linear filters of sequences, as ratios of polynomials in the shift z⁻¹ (the z-transform)."""

from dataclasses import dataclass

from numpy.polynomial import Polynomial


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
