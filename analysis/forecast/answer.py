"""The answer to "what will the delay cost there?": a forecast, or why there is not enough data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.forecast.forecast import Forecaster, Form, Point
from analysis.forecast.ladder import Ladder, Rung
from analysis.forecast.laws import left_out
from analysis.forecast.support import why_not
from analysis.statistics.intervals import Interval

Target = tuple[int, int, int]
"""Updates, tokens per update, parameters."""


@dataclass(frozen=True)
class Foretold:
    """A rung of the ladder, and what the shorter rungs say of it."""

    rung: Rung
    point: Point

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
    point: Point | None = None
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
