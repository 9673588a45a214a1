"""Edges of stability and noise of an optimizer: synchronous, delayed, and corrected; as a table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from pipegap.analysis.table.text import markdown
from pipegap.analysis.theory.linear import SAME, STRENGTHS, Filter, Hooks, Loop, hooks, late, linear
from pipegap.trainer.base.build import Node

START, SMALLEST = 0.01, 1e-9
"""The first k that is tried, and the smallest one, below which no k counts as stable."""
FACTOR = 1.25
"""From each k to the next one that is tried, until one is not stable."""
PRECISION = 1e-6
"""Relative precision of a largest stable k."""
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
        stable /= FACTOR
        if stable < SMALLEST:
            return 0.0
    while loop.is_stable(stable * FACTOR):
        stable *= FACTOR
    unstable = stable * FACTOR
    while unstable - stable > PRECISION * stable:
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
    key = next((key for key in STRENGTHS if key in correction), None)

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
        *map(three_digits, [*limits, *ratios]),
        "—" if math.isnan(row.best_strength) else f"{row.best_strength:.2f}",
        *(
            "unstable" if noise == math.inf else "—" if math.isnan(noise) else f"{noise:.3f}"
            for noise in (row.noise_delayed, row.noise_corrected)
        ),
        "—" if not math.isfinite(row.noise_removed) else f"{100 * row.noise_removed:.0f} %",
    ]


def three_digits(value: float) -> str:
    """`26.9`; `—` for a value that is unknown."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "—"
