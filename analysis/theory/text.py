"""The numbers of `stability` as a Markdown table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.table.text import markdown
from analysis.theory.stability import Stability

HEADS = (
    *("optimizer", "sync", "delay", "corrected", "sync / delay", "corrected / delay"),
    *("best coefficient", "noise of the delay", "corrected", "removed"),
)


def title(one: Stability) -> str:
    """What the table below it is of."""
    return (
        f"largest stable k = lr x curvature under a delay of {one.delay}, with {one.correction}; "
        f"variance of the weights at k = {one.k:g}, as a multiple of sync's"
    )


def table(found: Sequence[Stability]) -> str:
    """One row per optimizer."""
    return markdown(HEADS, map(cells, found))


def cells(one: Stability) -> list[str]:
    """A row of it: limits and ratios with three digits, unknown values as a dash."""
    limits = [one.sync, one.delayed, one.corrected]
    ratios = [one.sync_over_delayed, one.corrected_over_delayed]
    return [
        one.optimizer,
        *map(three_digits, [*limits, *ratios]),
        "—" if math.isnan(one.best_strength) else f"{one.best_strength:.2f}",
        *map(_noise, [one.noise_delayed, one.noise_corrected]),
        "—" if not math.isfinite(one.noise_removed) else f"{100 * one.noise_removed:.0f} %",
    ]


def three_digits(value: float) -> str:
    """`26.9`; `—` if it is unknown."""
    return f"{value:#.3g}".rstrip(".") if math.isfinite(value) else "—"


def _noise(value: float) -> str:
    return "unstable" if value == math.inf else "—" if math.isnan(value) else f"{value:.3f}"
