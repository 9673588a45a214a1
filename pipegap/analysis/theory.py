"""What delay and its corrections do to an optimizer on a quadratic: linear filters, edges of
stability, noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy.linalg import companion, solve_discrete_lyapunov
from scipy.optimize import minimize_scalar

from pipegap.analysis.table.text import markdown
from pipegap.trainer.base.build import Node, published
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.config.identity import declared, kind

# Linear filters of sequences; optimizers and corrections of conf/ as such filters, or why they
# are none; and the closed loop of an optimizer on a quadratic.
#
# Filters are ratios of polynomials in the shift z⁻¹ (the z-transform). The loop is W(t+1) = W(t)
# − applied(optimizer(gradient(k · read(W) + n))).
#
# The theory covers the choices whose YAML names a filter of those below (`# theory: …`). The
# filter of an optimizer is what it does with its gradients in time: its momentum, Nesterov's
# look-ahead, differences of gradients. What the optimizer does with gradients in space (a
# division by second moments, a rotation, an orthogonalisation, a sign) is held fixed, as one
# preconditioner. For momentum alone that is exact; for orthogonalisation, sign and constant norms
# it is an analogy. Decay of the weights is left out: lr · weight_decay is below 0.001 in conf/.
# Constants depend on the update where an optimizer has a schedule of its own; `updates` says how
# many updates are over, infinity that the schedule is.
#
# The filters of a correction stand around the optimizer, where the hooks of
# `trainer.corrections.none.NoCorrection` stand: before it (`gradient`), after it (`apply`), and
# where the weights are read (`ahead`).

SHIFT = Polynomial([0.0, 1.0])
"""z⁻¹."""
FIRM = 1e-9
"""A radius within this of 1 counts as 1, where rounding decides."""


@dataclass(frozen=True)
class Filter:
    """The output y with Σ_j denominator[j] y_{t−j} = Σ_i numerator[i] x_{t−i}, a ratio in z⁻¹.

    The coefficients of a polynomial are by lag, from 0. `denominator[0]` is 1.
    """

    numerator: Polynomial
    denominator: Polynomial

    def __add__(self, addend: "Filter") -> "Filter":
        """The sum of both outputs for one input."""
        return Filter(
            self.numerator * addend.denominator + addend.numerator * self.denominator,
            self.denominator * addend.denominator,
        )

    def __mul__(self, factor: "Filter") -> "Filter":
        """One filter after the other."""
        return Filter(self.numerator * factor.numerator, self.denominator * factor.denominator)

    def __rmul__(self, factor: float) -> "Filter":
        return Filter(factor * self.numerator, self.denominator)


SAME = Filter(Polynomial([1.0]), Polynomial([1.0]))
"""y_t = x_t."""


def late(lag: int) -> Filter:
    """y_t = x_{t−lag}."""
    return Filter(Polynomial([*[0.0] * lag, 1.0]), SAME.denominator)


def average(decay: float) -> Filter:
    """The running average y_t = decay · y_{t−1} + (1 − decay) · x_t."""
    return Filter(Polynomial([1.0 - decay]), Polynomial([1.0, -decay]))


def total(decay: float) -> Filter:
    """The running sum y_t = decay · y_{t−1} + x_t."""
    return Filter(SAME.numerator, Polynomial([1.0, -decay]))


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
        way = self.change * self.hooks.read  # N / D
        alone, of_k = ((1 - SHIFT) * way.denominator).coef, (SHIFT * way.numerator).coef
        length = max(len(alone), len(of_k))
        # The degrees differ, since `Polynomial` drops zeros of the highest ones.
        return np.pad(alone, (0, length - len(alone))), np.pad(of_k, (0, length - len(of_k)))

    def state_matrix(self, k: float) -> NDArray[np.float64]:
        """(W(t), …, W(t−n+1)) → (W(t+1), …, W(t−n+2)): the companion of `characteristic`."""
        return companion(self.characteristic(k))

    def radius(self, k: float) -> float:
        """The largest absolute eigenvalue: W grows, or shrinks, by it per update."""
        return float(np.abs(np.linalg.eigvals(self.state_matrix(k))).max())

    def is_stable(self, k: float) -> bool:
        """Whether no root lies outside of the unit circle."""
        return self.radius(k) <= 1 + FIRM  # on the edge W neither grows nor shrinks

    def noise(self, k: float) -> float:
        """The stationary variance of W under white noise of variance 1 in the gradients.

        In units of (lr · P⁻¹)²; infinite where the loop is not stable. W is b filtered by 1 / a, so
        with the state x of 1 / a, x ← A x + e₁ n, it is bᵀ Σ b with Σ = A Σ Aᵀ + e₁ e₁ᵀ.
        """
        if self.radius(k) >= 1 - FIRM:
            return float("inf")
        matrix = self.state_matrix(k)
        driven = np.zeros_like(matrix)
        driven[0, 0] = 1.0  # e₁ e₁ᵀ: noise enters the newest entry alone
        # z⁻¹ is left out of b: it moves W in time and changes no variance.
        b = np.zeros(len(matrix))
        immediate = (self.change.numerator * self.hooks.read.denominator).coef
        b[: len(immediate)] = immediate
        return float(b @ solve_discrete_lyapunov(matrix, driven) @ b)


Settings = Mapping[str, Any]
T = TypeVar("T")


def linear(node: Node, updates: float = math.inf) -> Filter:
    """The filter of an optimizer with its settings, after so many updates.

    Gradients are in units of lr and preconditioner: u = lr · P⁻¹ · filter(g). Raises BadInput for
    an optimizer that has no linear recursion, with the reason.
    """
    return _filter("optimizer", node, FILTERS)(node, updates)


def hooks(node: Node, delay: int) -> Hooks:
    """The filters of a correction with its settings, under a delay in updates.

    Raises BadInput for a correction that is not linear, with the reason.
    """
    filters = _filter("correction", node, CORRECTIONS)
    return filters(node, delay) if delay else Hooks(SAME)  # fresh gradients are not corrected


def _filter(group: str, node: Node, filters: Mapping[str, T]) -> T:
    """The filter that the YAML of a choice names in its line `# theory: …`."""
    ours = declared(group).get(kind(group, node))
    theory = None if ours is None else ours.theory
    if theory is None or theory.startswith(NONE):
        why = "is not covered by the theory" if theory is None else theory.removeprefix(NONE)
        raise BadInput(group, published(node["_target_"]).rpartition(".")[2], why)
    return filters[theory]


def _averaged(settings: Settings, updates: float) -> Filter:
    """m ← β m + (1 − β) g, and m is applied."""
    return average(settings["momentum"])


def _summed(settings: Settings, updates: float) -> Filter:
    """b ← β b + g, and b is applied, or g + β b: Nesterov's."""
    summed = total(settings["momentum"])
    return SAME + settings["momentum"] * summed if settings["nesterov"] else summed


def _look_ahead(settings: Settings, updates: float) -> Filter:
    """m ← β m + (1 − β) g, and m is applied, or (1 − β) g + β m: Nesterov's."""
    momentum = settings["momentum"]
    return _ahead(momentum, momentum) if settings["nesterov"] else average(momentum)


def _ahead(decay: float, share: float) -> Filter:
    """(1 − share) g + share · m."""
    return (1 - share) * SAME + share * average(decay)


def _nadamw(settings: Settings, updates: float) -> Filter:
    """The share of m in the update grows with the updates, from half of β to β; its decay is β."""
    # 0.96 is torch's constant; updates may be infinite, and infinity · 0 is NaN.
    ramp = 0.96 ** (updates * settings["momentum_decay"]) if settings["momentum_decay"] else 1.0
    return _ahead(settings["momentum"], settings["momentum"] * (1 - 0.5 * ramp))


def _adan(settings: Settings, updates: float) -> Filter:
    """m + β d, where d averages the differences of gradients with decay β."""
    decay = settings["difference_decay"]
    return average(settings["momentum"]) + decay * (average(decay) * change())


def _ademamix(settings: Settings, updates: float) -> Filter:
    """A fast average and `slow_share` times a slow one, both still growing in the slow warm-up."""
    way, decay = min(updates / settings["slow_warmup"], 1.0), settings["slow_momentum"]
    if way < 1:  # the slow decay grows from the fast one, linearly in the half-life
        fast, slow = math.log(settings["momentum"]), math.log(decay)
        decay = math.exp(fast * slow / ((1 - way) * slow + way * fast))
    return average(settings["momentum"]) + way * settings["slow_share"] * average(decay)


def _mars(settings: Settings, updates: float) -> Filter:
    """The average of g_t + γ β / (1 − β) · (g_t − g_{t−1})."""
    decay = settings["momentum"]
    return (SAME + settings["correction"] * decay / (1 - decay) * change()) * average(decay)


def _lion(settings: Settings, updates: float) -> Filter:
    """interpolation · m_{t−1} + (1 − interpolation) · g_t."""
    share = settings["interpolation"]
    return share * (late(1) * average(settings["momentum"])) + (1 - share) * SAME


def _error_feedback(settings: Settings, delay: int) -> Hooks:
    """u_t + λ (u_t − u_{t−lag})."""
    lag = delay if settings["lag"] == "delay" else 1
    return Hooks(late(delay), applied=SAME + settings["coefficient"] * change(lag))


def _matched_error_feedback(settings: Settings, delay: int) -> Hooks:
    """u_t + λ τ (u_t − u_{t−lag})."""
    return _error_feedback({**settings, "coefficient": settings["coefficient"] * delay}, delay)


def _error_feedback_on_gradients(settings: Settings, delay: int) -> Hooks:
    """g_t + λ (g_t − g_{t−1})."""
    return Hooks(late(delay), gradient=SAME + settings["coefficient"] * change())


def _weight_prediction(settings: Settings, delay: int) -> Hooks:
    """W(v) − h τ u_{v−1}, and u_{v−1} is W(v−1) − W(v)."""
    # `change` of W(v) is W(v) − W(v−1), which is −u_{v−1}.
    return Hooks(late(delay) * (SAME + settings["horizon"] * delay * change()))


def _taylor(settings: Settings, delay: int) -> Hooks:
    """g + λ D (W(t) − W(version)) with D held at the curvature: λ is the share that is undone."""
    share = settings["coefficient"]
    return Hooks((1 - share) * late(delay) + share * SAME)


def _same(settings: Settings, updates: float) -> Filter:
    """g, as it came."""
    return SAME


def _plain(settings: Settings, delay: int) -> Hooks:
    """A late gradient, about which nothing is done."""
    return Hooks(late(delay))


FILTERS: Mapping[str, Callable[[Settings, float], Filter]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_same, _averaged, _summed, _look_ahead, _nadamw, _adan, _ademamix, _mars, _lion),
    )
}
"""Filters of optimizers, for matrices, by the name that the optimizer's YAML gives."""

CORRECTIONS: Mapping[str, Callable[[Settings, int], Hooks]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_plain, _error_feedback, _matched_error_feedback, _error_feedback_on_gradients),
        *(_weight_prediction, _taylor),
    )
}
"""Filters of corrections under a positive delay, likewise."""
NONE = "none: "
"""How the theory of a choice without a filter begins; the reason follows."""


# Edges of stability and noise of an optimizer: synchronous, delayed, and corrected; as a table.

START, SMALLEST = 0.01, 1e-9
"""The first k that is tried, and the smallest one, below which no k counts as stable."""
FACTOR = 1.25
"""From each k to the next one that is tried, until one is not stable."""
GRID = 0.25
"""Step between the strengths that are tried, before the best of them is refined."""


HEADS = (
    *("optimizer", "sync", "delay", "corrected", "sync / delay", "corrected / delay"),
    *("best coefficient", "noise of the delay", "corrected", "removed"),
)


@dataclass(frozen=True)
class Stability:
    """What a delay does to one optimizer, and a correction to that. k is lr times curvature.

    Limits are the largest stable k. Noise is the stationary variance of the weights at `k`, as a
    multiple of sync's there: infinite above a limit, NaN above sync's own.
    """

    optimizer: str
    correction: str
    delay: int
    sync: float
    delayed: float
    corrected: float
    best_strength: float
    """That of the largest limit; NaN for a correction that has no strength."""
    best_corrected: float
    """The limit with it."""
    k: float
    noise_delayed: float
    noise_corrected: float

    @property
    def sync_over_delayed(self) -> float:
        """By how much the delay lowers the largest stable learning rate."""
        return _ratio(self.sync, self.delayed)

    @property
    def corrected_over_delayed(self) -> float:
        """By how much the correction raises it again."""
        return _ratio(self.corrected, self.delayed)

    @property
    def noise_removed(self) -> float:
        """The share of the noise that the delay adds and the correction takes away."""
        added = self.noise_delayed - 1
        return (self.noise_delayed - self.noise_corrected) / added if added else math.nan


def stability(
    names: tuple[str, str],
    optimizer: Node,
    correction: Node,
    *,
    delay: int,
    k: float,
    updates: float = math.inf,
) -> Stability:
    """The stability of an optimizer and a correction; their `names` are only passed on.

    `delay` is in updates, and `updates` says how many are over. Raises BadInput for what is not
    linear.
    """
    filtered = linear(optimizer, updates)
    sync, delayed = Loop(filtered, Hooks(SAME)), Loop(filtered, Hooks(late(delay)))
    corrected = Loop(filtered, hooks(correction, delay))
    best, best_limit = best_strength(filtered, correction, delay)
    quiet = sync.noise(k) if sync.is_stable(k) else math.nan
    name, name_of_correction = names
    return Stability(
        optimizer=name,
        correction=name_of_correction,
        delay=delay,
        sync=largest_stable(sync),
        delayed=largest_stable(delayed),
        corrected=largest_stable(corrected),
        best_strength=best,
        best_corrected=best_limit,
        k=k,
        noise_delayed=delayed.noise(k) / quiet,
        noise_corrected=corrected.noise(k) / quiet,
    )


def _ratio(limit: float, base: float) -> float:
    return limit / base if base else math.nan


def largest_stable(loop: Loop) -> float:
    """The largest k such that the loop is stable at it and below; 0 if there is none.

    Found by steps of FACTOR, then by bisection. There is always an unstable k: as k grows, a root
    goes to infinity, because W(t+1) does not depend on itself.
    """
    stable = START
    while not loop.is_stable(stable):
        stable /= FACTOR  # a large momentum and delay may allow less than START
        if stable < SMALLEST:
            return 0.0
    while loop.is_stable(stable * FACTOR):
        stable *= FACTOR
    unstable = stable * FACTOR
    while unstable - stable > 1e-6 * stable:
        middle = (stable + unstable) / 2
        if loop.is_stable(middle):
            stable = middle
        else:
            unstable = middle
    return stable


def best_strength(optimizer: Filter, correction: Node, delay: int) -> tuple[float, float]:
    """The strength from 0 to 2 (delay + 1) with the largest limit, and that limit.

    (NaN, the limit) for a correction without a strength, or without a delay.
    """
    # What says how much is done about the delay; a correction has at most one of these settings.
    key = next((key for key in ("coefficient", "horizon") if key in correction), None)

    def limit(strength: float) -> float:
        return largest_stable(Loop(optimizer, hooks({**correction, str(key): strength}, delay)))

    if key is None or not delay:
        return math.nan, largest_stable(Loop(optimizer, hooks(correction, delay)))
    return _highest(limit, 2.0 * (delay + 1))


def _highest(function: Callable[[float], float], most: float) -> tuple[float, float]:
    """Argument from 0 to `most` and value of a maximum: the best of a grid, refined around it."""
    grid = [i * GRID for i in range(round(most / GRID) + 1)]
    best = max(grid, key=function)
    around = (max(best - GRID, 0.0), min(best + GRID, most))
    minimum = minimize_scalar(lambda x: -function(x), bounds=around, options={"xatol": 1e-3})
    # A limit may have several maxima: the refined one counts only if it is higher.
    refined = float(minimum.x)
    best = refined if function(refined) > function(best) else best
    return best, function(best)


def title(row: Stability) -> str:
    """The title of a table with this row."""
    return (
        f"largest stable k = lr x curvature under a delay of {row.delay}, with {row.correction}; "
        f"variance of the weights at k = {row.k:g}, as a multiple of sync's"
    )


def table(rows: Sequence[Stability]) -> str:
    """A Markdown table with one row per optimizer."""
    return markdown(HEADS, map(cells, rows))


def cells(row: Stability) -> list[str]:
    """The cells of a row: limits and ratios with three digits, unknown values as a dash."""
    limits = [row.sync, row.delayed, row.corrected]
    ratios = [row.sync_over_delayed, row.corrected_over_delayed]
    return [
        row.optimizer,
        *(f"{x:#.3g}".rstrip(".") if math.isfinite(x) else "—" for x in [*limits, *ratios]),
        "—" if math.isnan(row.best_strength) else f"{row.best_strength:.2f}",
        *(
            "unstable" if noise == math.inf else "—" if math.isnan(noise) else f"{noise:.3f}"
            for noise in (row.noise_delayed, row.noise_corrected)
        ),
        "—" if not math.isfinite(row.noise_removed) else f"{100 * row.noise_removed:.0f} %",
    ]
