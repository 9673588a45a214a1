"""Every correction of conf/correction/ from its paper's equations: one weight, all of its history.

A reference is made with the settings of conf/correction/ and the number of updates T. Its methods
return what batch t reads, its gradient, the factor on the learning rate, and W(t+1). A new
correction needs a reference here, in `REFERENCES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace as Settings
from typing import Any, ClassVar

from torch import Tensor


@dataclass
class History:
    """Of one weight, by number of the version or the batch."""

    lag: int
    """How many versions behind it is read while the delay is on."""
    W: list[Tensor]
    delay: list[int] = field(default_factory=list)
    g: list[Tensor] = field(default_factory=list)
    """Raw gradients, at what batch t read."""
    u: list[Tensor] = field(default_factory=list)
    """What the optimizer subtracted from W(t)."""
    stepped: list[Tensor] = field(default_factory=list)
    """W(t) − u_t, as the optimizer wrote it."""
    x: list[Tensor] = field(default_factory=list)
    """What is evaluated: W(0), then each W(t+1) before a look ahead."""
    rate: list[float] = field(default_factory=list)
    """Learning rate of update t as a share of the highest of all."""


class Plain:
    """W(t+1) = W(t) − u_t, u_t made of the gradient at W(t − delay)."""

    settings: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)
    """Changes of conf/correction/ that the reference is tried with."""

    def __init__(self, o: Settings, T: int) -> None:
        self.o, self.T = o, T

    def read(self, h: History, t: int) -> Tensor:
        return h.W[t - h.delay[t]]

    def gradient(self, h: History, t: int) -> Tensor:
        return h.g[t]

    def lr_factor(self, h: History, t: int) -> float:
        return 1.0

    def next(self, h: History, t: int) -> Tensor:
        return h.stepped[t]

    def look_ahead(self, h: History, t: int) -> Tensor:
        """What is read and stepped from after update t, where x(t+1) is reached."""
        return h.x[t + 1]


PLAIN = Plain(Settings(), 0)


class ErrorFeedback(Plain):
    """arXiv 2606.30634, Eq. 4: W(t+1) = W(t) − u_t − λ (u_t − u_{t−lag}).

    Nothing is corrected after a zero update, which an optimizer may make at its first call.
    """

    settings = ({}, {"coefficient": 0.7}, {"coefficient": 0.7, "lag": "delay"})

    def next(self, h: History, t: int) -> Tensor:
        lag = h.delay[t] if self.o.lag == "delay" else 1
        if h.delay[t] == 0 or not h.u[t - lag].any():
            return h.stepped[t]
        return h.stepped[t] - self.o.coefficient * (h.u[t] - h.u[t - lag])


class EmaNesterov(ErrorFeedback):
    """arXiv 2605.25395: y = x + β m, m(t+1) = γ m(t) + (1 − γ) (x(t+1) − x(t)), m(0) = 0.

    m is written as the sum that it is. β follows the learning rate of the update before, as in the
    authors' record; it is 0 at first, and at the end.
    """

    settings = (
        {"decay": 0.7, "look_ahead": 1.0},
        {"decay": 0.7, "start": 2, "rest": 0, "coefficient": 0.7},
        {"decay": 0.0, "look_ahead": 1.5, "start": 0.0, "rest": 3, "coefficient": 2.0},
    )

    def __init__(self, o: Settings, T: int) -> None:
        super().__init__(Settings(**vars(o), lag=1), T)

    def look_ahead(self, h: History, t: int) -> Tensor:
        share = lambda phase: phase * self.T if isinstance(phase, float) else phase  # noqa: E731
        if not round(share(self.o.start)) <= t + 1 < self.T - round(share(self.o.rest)):
            return h.x[t + 1]
        gamma, moves = self.o.decay, zip(h.x[: t + 1], h.x[1 : t + 2], strict=True)
        m = sum((1 - gamma) * gamma ** (t - s) * (b - a) for s, (a, b) in enumerate(moves))
        return h.x[t + 1] + self.o.look_ahead * h.rate[t] * m


class MatchedErrorFeedback(Plain):
    """W(t+1) = W(t) − u_t − λ τ (u_t − u_{t−lag}), τ the counted delay of batch t."""

    settings = ({}, {"coefficient": 0.3}, {"coefficient": 0.3, "lag": "delay"})

    def next(self, h: History, t: int) -> Tensor:
        tau = h.delay[t]
        if tau == 0:
            return h.stepped[t]
        earlier = h.u[t - tau] if self.o.lag == "delay" else h.u[t - 1]
        return h.stepped[t] - self.o.coefficient * tau * (h.u[t] - earlier)


class AdaptiveErrorFeedback(Plain):
    """The same with λ_t = λ · clamp(a/b, 0, 1), a and b running averages of ⟨u_t, u_{t−1}⟩ and
    ‖u_{t−1}‖² over the delayed updates, from their first values."""

    settings = ({}, {"coefficient": 0.7, "decay": 0.0}, {"coefficient": 2.0, "decay": 0.5})

    def next(self, h: History, t: int) -> Tensor:
        if h.delay[t] == 0:
            return h.stepped[t]
        late = [s for s in range(1, t + 1) if h.delay[s] > 0]
        a = _average([(h.u[s] * h.u[s - 1]).sum() for s in late], self.o.decay)
        b = _average([(h.u[s - 1] ** 2).sum() for s in late], self.o.decay)
        coefficient = self.o.coefficient * (a / b).clamp(0, 1)
        return h.stepped[t] - coefficient * (h.u[t] - h.u[t - 1])


class GradientErrorFeedback(Plain):
    """The ablation of arXiv 2606.30634: g_t + λ (g_t − g_{t−1}) in place of g_t."""

    settings = ({}, {"coefficient": 0.7})

    def gradient(self, h: History, t: int) -> Tensor:
        if h.delay[t] == 0:
            return h.g[t]
        return h.g[t] + self.o.coefficient * (h.g[t] - h.g[t - 1])


class LearningRate(Plain):
    """PipeMare (arXiv 1910.05124), T1: the rate divided by τ^p, p = 1 − min(k/K, 1)."""

    settings = ({"anneal": 1.0}, {"anneal": 6})

    def lr_factor(self, h: History, t: int) -> float:
        K = self.o.anneal * self.T if isinstance(self.o.anneal, float) else self.o.anneal
        return 1 / max(h.delay[t], 1) ** (1 - min(t / K, 1))


class Taylor(Plain):
    """DC-ASGD-c (arXiv 1609.08326): g + λ g ⊙ g ⊙ (W(t) − W(version)).

    With a decay, g ⊙ g is averaged over the updates, from its first value.
    """

    settings = ({"coefficient": 30.0}, {"coefficient": 30.0, "decay": 0.9})

    def gradient(self, h: History, t: int) -> Tensor:
        diagonal = _average([g**2 for g in h.g], self.o.decay)
        return h.g[t] + self.o.coefficient * diagonal * (h.W[t] - h.W[t - h.delay[t]])


class WeightPrediction(Plain):
    """XPipe (arXiv 1911.04610) and SpecTrain (1809.02839) for any optimizer: a late batch reads
    Ŵ = W(v) − h u_{v−1}, h a multiple of its lag. Nothing is predicted before the first update."""

    settings = ({}, {"horizon": 0.6})

    def read(self, h: History, t: int) -> Tensor:
        v = t - h.delay[t]
        if v in (0, t):
            return h.W[v]
        return h.W[v] - self.o.horizon * h.lag * h.u[v - 1]


def _average(values: list[Tensor], decay: float) -> Tensor:
    """Exponential average that starts from the first value."""
    average = values[0]
    for value in values[1:]:
        average = decay * average + (1 - decay) * value
    return average


REFERENCES: Mapping[str, type[Plain]] = {
    "adaptive_error_feedback": AdaptiveErrorFeedback,
    "ema_nesterov": EmaNesterov,
    "error_feedback": ErrorFeedback,
    "error_feedback_gradient": GradientErrorFeedback,
    "learning_rate": LearningRate,
    "matched_error_feedback": MatchedErrorFeedback,
    "none": Plain,
    "taylor": Taylor,
    "weight_prediction": WeightPrediction,
}
"""By the choice's name."""
