"""What a ladder supports: how many rungs a law needs, and how far beyond them it may be taken."""

from __future__ import annotations

from analysis.forecast.ladder import Ladder
from analysis.forecast.laws import FORMS, REGRESSORS, SyncLaw, TaxLaw, left_out, scale_of

FEWEST_LENGTHS = 3
"""Two lengths do not show how sync's loss bends."""
REACH = 1.0
"""How far beyond its ends a ladder carries, as a share of its own span, in logarithms."""


def why_not(ladder: Ladder, target: tuple[int, int, int]) -> str:
    """Why the ladder supports no forecast at a target (updates, tokens per update, parameters);
    empty if it does."""
    if not ladder.rungs:
        return "no rung: " + ("; ".join(ladder.dropped) or "no pair of this arm and sync")
    settings = ladder.settings
    num_lengths, needed = len(set(settings[:, 0])), _needed(ladder)
    if num_lengths < FEWEST_LENGTHS:
        return f"{num_lengths} lengths, {FEWEST_LENGTHS} are needed to see how sync's loss falls"
    if len(settings) < needed:
        return f"{len(settings)} rungs, {needed} are needed for what varies among them"
    constant = left_out(settings)
    for name, column, value in zip(REGRESSORS, settings.T, target, strict=True):
        low, high = column.min(), column.max()
        if name in constant and value != low:
            return f"every rung has {name}={low:.0f}: nothing is known of {name}={value}"
        reach = (high / low) ** REACH
        if not low / reach <= value <= high * reach:
            return (
                f"{name}={value} is too far from the rungs' {low:.0f} to {high:.0f}: they carry "
                f"from {low / reach:.0f} to {high * reach:.0f}"
            )
    return ""


def _needed(ladder: Ladder) -> int:
    """One rung more than the larger law has parameters."""
    scale, settings = scale_of(ladder.settings), ladder.settings
    taxes = [TaxLaw(scale, settings, has).num_parameters for has in FORMS.values()]
    return 1 + max(SyncLaw(scale, settings).num_parameters, *taxes)
