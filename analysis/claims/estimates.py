"""Estimates out of the table of gaps, and how two of them compare."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.claims.claim import Estimate, Outcome, Part
from analysis.intervals import mean_interval

BOOTSTRAP_SEED = 0
SAME = 0.2
"""A number has not changed if the interval of its change lies within this share of it."""
Row = Mapping[Hashable, Any]


def gap(row: Row, name: str) -> Estimate:
    """The gap of a row of `analysis.gaps`. Where some seeds of the arm diverged the mean of the
    others would flatter it, and so decides nothing; where all did it is infinite."""
    if row["pairs"] >= 2 and row["diverged"] == row["pairs"]:
        return Estimate(name, math.inf, math.inf, math.inf, row["pairs"])
    return Estimate(name, row["gap"], row["low"], row["high"], row["n"], _diverged(row))


def removed(row: Row, name: str) -> Estimate:
    """The share of the gap that the row's correction removes."""
    share, low, high = row["removed"], row["removed_low"], row["removed_high"]
    nothing = "no share without a plain gap whose interval excludes 0" if row["n"] >= 2 else ""
    reason = _diverged(row) or (nothing if math.isnan(share) else "")
    return Estimate(name, share, low, high, row["removed_n"] or row["n"], reason)


def _diverged(row: Row) -> str:
    return f"{row['diverged']} of {row['pairs']} diverged" if row["diverged"] else ""


def absent(name: str) -> Estimate:
    """Of what no trial was made."""
    return Estimate(name, math.nan, math.nan, math.nan, 0)


def mean(values: pd.Series, name: str) -> Estimate:
    """The mean over seeds of what was measured."""
    found = values.dropna().to_numpy(dtype=float)
    low, high = mean_interval(found, np.random.default_rng(BOOTSTRAP_SEED))
    return Estimate(name, found.mean() if len(found) else math.nan, low, high, len(found))


def by_optimizer(gaps: pd.DataFrame, arm: str) -> dict[str, Estimate]:
    """For each optimizer the gap of an arm at the point of the lowest sync loss."""
    rows = gaps[gaps["arm"] == arm].sort_values("loss_sync", kind="stable")
    best = rows.drop_duplicates("optimizer").to_dict("records")
    return {row["optimizer"]: gap(row, str(row["optimizer"])) for row in best}


def with_key(trials: pd.DataFrame, gaps: pd.DataFrame, key: str) -> pd.DataFrame:
    """The gaps with the value that their point has for a key of the config."""
    if key not in trials:
        return gaps[:0].assign(**{key: np.nan})
    return gaps.merge(trials.drop_duplicates("point")[["point", key]], on="point")


def ends(rows: pd.DataFrame, key: str) -> Iterator[tuple[str, Row, Row]]:
    """For each optimizer the rows of the smallest and the largest value of a key."""
    for optimizer, group in rows.dropna(subset=key).groupby("optimizer"):
        ordered = group.sort_values(key, kind="stable").to_dict("records")
        if ordered[0][key] < ordered[-1][key]:
            yield str(optimizer), ordered[0], ordered[-1]


def below(what: str, first: Estimate, second: Estimate) -> Part:
    """Reproduced if the first interval lies below the second, contradicted if it lies above."""
    flaws = [estimate.flaw for estimate in (first, second) if estimate.flaw]
    if flaws:
        return Part(what, Outcome.UNDECIDED, (first, second), "; ".join(flaws))
    if first.high < second.low:
        return Part(what, Outcome.REPRODUCED, (first, second))
    if first.low > second.high:
        return Part(what, Outcome.CONTRADICTED, (first, second))
    return Part(what, Outcome.UNDECIDED, (first, second), "the intervals overlap")


def within(what: str, value: Estimate, low: float, high: float) -> Part:
    """Reproduced if the whole interval lies in [low, high], contradicted if none of it does."""
    if value.flaw:
        return Part(what, Outcome.UNDECIDED, (value,), value.flaw)
    if value.high < low or value.low > high:
        return Part(what, Outcome.CONTRADICTED, (value,))
    if value.low > low and value.high < high:
        return Part(what, Outcome.REPRODUCED, (value,))
    return Part(
        what, Outcome.UNDECIDED, (value,), f"holds values on both sides of {_limits(low, high)}"
    )


def _limits(low: float, high: float) -> str:
    return " and ".join(f"{limit:g}" for limit in (low, high) if not math.isinf(limit))
