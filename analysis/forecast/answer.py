"""The answer to "what will the delay cost there?": a forecast, or why there is not enough data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.forecast.forecast import Forecast, Forecaster, Form
from analysis.forecast.ladder import Ladder, Rung
from analysis.forecast.laws import FORMS, REGRESSORS, SyncLaw, TaxLaw, left_out, scale_of
from analysis.statistics.intervals import Interval

Target = tuple[int, int, int]
"""Updates, tokens per update, parameters."""
FEWEST_LENGTHS = 3
"""Two lengths do not show how sync's loss bends."""
REACH = 1.0
"""How far beyond its ends a ladder carries, as a share of its own span, in logarithms."""


@dataclass(frozen=True)
class Foretold:
    """A rung of the ladder, and what the shorter rungs say of it."""

    rung: Rung
    point: Forecast

    @property
    def is_inside(self) -> bool:
        """Whether its mean gap lies in the interval."""
        low, high = self.point.gap_interval
        return bool(low <= self.rung.gaps.mean() <= high)


@dataclass(frozen=True)
class Answer:
    """For one optimizer and arm. Without enough data `point` is None and `why` says it."""

    ladder: Ladder
    target: Target
    seeds: int
    point: Forecast | None = None
    why: str = ""
    forms: Sequence[Form] = ()
    """The chosen one first."""
    exponents: Mapping[str, Interval] = field(default_factory=dict)
    """95 % intervals of the law's exponents, around the forms that count."""
    left_out: Sequence[str] = ()
    """Regressors that do not vary on the ladder."""
    longest: Sequence[Foretold] = ()
    """The longest rungs, foretold from the shorter ones; empty if these do not support that."""

    @property
    def is_beyond(self) -> bool:
        """Whether the target lies outside of the rungs."""
        settings, target = self.ladder.settings, np.array(self.target)
        return bool(((target < settings.min(0)) | (target > settings.max(0))).any())


def answer(ladder: Ladder, target: Target, seeds: int) -> Answer:
    """The forecast of the mean gap of so many seeds at the target."""
    if why := why_not(ladder, target):
        return Answer(ladder, target, seeds, why=why)
    forecaster = Forecaster(ladder)
    [point] = forecaster.at(np.array([target], dtype=float), seeds)
    return Answer(
        ladder,
        target,
        seeds,
        point,
        forms=forecaster.forms,
        exponents=forecaster.exponents,
        left_out=left_out(ladder.settings),
        longest=_longest(ladder),
    )


def _longest(ladder: Ladder) -> list[Foretold]:
    """Each of the longest rungs, foretold from all that are shorter."""
    length = max(rung.updates for rung in ladder.rungs)
    shorter = ladder.below(length)
    rungs = [rung for rung in ladder.rungs if rung.updates == length]
    rungs = [rung for rung in rungs if not why_not(shorter, rung.settings)]
    if not rungs:
        return []
    forecaster = Forecaster(shorter)
    return [
        Foretold(rung, *forecaster.at(np.array([rung.settings], dtype=float), len(rung.gaps)))
        for rung in rungs
    ]


def why_not(ladder: Ladder, target: Target) -> str:
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
