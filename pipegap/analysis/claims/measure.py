"""Paired gaps from the table of trials as the rows of comparisons, and the rules of most claims:
weighted sums of paired numbers that must lie above 0.
"""

import math
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from pipegap.analysis.claims.rule import (
    REPRODUCED,
    SAME,
    ClaimRule,
    Codes,
    Comparison,
    Estimate,
    Mask,
    Means,
    Row,
    codes_of,
    estimate,
)
from pipegap.analysis.statistics.pairs import (
    VARIANT,
    Values,
    mean_intervals,
    moments,
    pairs,
    share_interval,
)
from pipegap.analysis.table.points import in_order, remembered, settings
from pipegap.analysis.table.schema import OF_ARM
from pipegap.trainer.base.errors import Status


class Contrast(NamedTuple):
    """A weighted sum of rows."""

    name: str
    weights: tuple[float, ...]

    def of(self, values: Values) -> Values:
        """Shape (..., seeds). A row of weight 0 may be infinite."""
        terms = [w * values[..., row, :] for row, w in enumerate(self.weights) if w]
        with np.errstate(invalid="ignore"):  # ∞ − ∞ is NaN, which decides nothing
            return np.sum(terms, axis=0)


@dataclass(frozen=True)
class Above(ClaimRule):
    """Reproduced where the interval of every contrast lies above 0, contradicted where one lies
    below 0; with `needed`, undecided unless that contrast's interval lies above 0."""

    contrasts: tuple[Contrast, ...]
    needed: Contrast | None = None

    @property
    def num_refuting(self) -> int:
        """How many contrasts there are."""
        return len(self.contrasts)

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether all contrasts lie above 0, or one of them below."""
        # 95 % for what reproduces, where all must hold; `confidence` for what contradicts, where
        # one is enough.
        sums = [moments(contrast.of(values)) for contrast in self.contrasts]
        lows = [sum_of_rows.interval()[0] for sum_of_rows in sums]
        highs = [sum_of_rows.interval(confidence)[1] for sum_of_rows in sums]
        is_shown = np.all(np.greater(lows, 0), axis=0)
        refuted = np.any(np.less(highs, 0), axis=0)
        return codes_of(is_shown, refuted, _is_positive(self.needed, values))

    def why(self, values: Values) -> str:
        """The contrasts whose intervals hold 0, or lie below it by too little."""
        if self.needed is not None and not _is_positive(self.needed, values):
            return f"{self.needed.name} may be 0"
        ends = {contrast.name: mean_intervals(contrast.of(values)) for contrast in self.contrasts}
        if below := " and ".join(name for name, (_, high) in ends.items() if high < 0):
            return f"{below}: below 0 by 95 %, which is too little among so many parts"
        # `not`: NaN too.
        either = " and ".join(name for name, (low, _) in ends.items() if not low > 0)
        return f"{either}: may lie on either side of 0"

    def numbers(self, values: Values) -> list[Estimate]:
        """Each contrast of several rows; that of one row is shown already."""
        return [
            estimate(contrast.name, contrast.of(values))
            for contrast in self.contrasts
            if np.count_nonzero(contrast.weights) > 1
        ]


def _is_positive(contrast: Contrast | None, values: Values) -> Mask | bool:
    return contrast is None or mean_intervals(contrast.of(values))[0] > 0


@dataclass(frozen=True)
class Removed(Above):
    """`Above` for rows plain and left, with the share as its number.

    That the interval of plain · (1 - limit) - left excludes 0 is what Fieller's interval of the
    share says of the limit.
    """

    def numbers(self, values: Values) -> list[Estimate]:
        """The share of the plain gap that is removed."""
        return [share("share removed", values[1], values[0])]


def removes(low: float, high: float | None = None) -> Removed:
    """That more than `low` and less than `high` of the plain gap is removed, where there is one."""
    contrasts = [Contrast(f"the share removed beyond {low:.0%}", (1 - low, -1.0))]
    if high is not None:
        contrasts.append(Contrast(f"the share short of {high:.0%}", (high - 1, 1.0)))
    return Removed(tuple(contrasts), Contrast("the gap of the plain delay", (1.0, 0.0)))


def share(name: str, gap_left: Values, plain: Values) -> Estimate:
    """The share of a plain gap that is removed, with its interval where the gap is not weak."""
    low, high = share_interval(gap_left, plain)
    removed = float(1 - gap_left.mean() / plain.mean())
    if math.isfinite(removed) and math.isnan(low):
        removed = math.nan
    # `share_interval` is that of the share that is left: its ends change places.
    return Estimate(name, removed, 1 - high, 1 - low, len(plain))


@dataclass(frozen=True)
class NearBest(Above):
    """`Above` that is reproduced only where the row of the lowest mean is neither the first nor the
    last: beyond the edge of a grid may be a better one."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether all contrasts lie above 0 inside of the grid, or one of them below."""
        codes = super().decide(values, confidence)
        return np.where((codes == REPRODUCED) & _at_edge(values), 0, codes).astype(np.int8)

    def why(self, values: Values) -> str:
        """That the best row is at the edge, or the contrasts whose intervals hold 0."""
        if _at_edge(values):
            return "the best one is at the edge of the grid: beyond may be a better one"
        return super().why(values)


def near_best(coefficients: list[float]) -> NearBest:
    """That the gap at the coefficient 1 is at most SAME of the plain gap above each other one, and
    below the plain gap; rows: the plain delay, then the coefficients, ascending."""
    rows = [0.0, *coefficients]
    at_one = rows.index(1.0)
    helps = tuple(float(row == 0) - float(row == at_one) for row in range(len(rows)))
    contrasts = _near([f"λ={value:g}" for value in rows], at_one, 0, "the plain gap")
    return NearBest(contrasts, Contrast("what λ=1 removes", helps))


def near_best_of_arm(names: Sequence[str], best: int) -> NearBest:
    """That the gap at the row `best` is at most SAME of itself above each other one; rows: the
    arm at each value of a setting, ascending, above sync at the chosen one."""
    weights = tuple(float(row == best) for row in range(len(names)))
    contrasts = _near(names, best, best, "the gap")
    return NearBest(contrasts, Contrast(f"the gap at {names[best]}", weights))


def _near(names: Sequence[str], best: int, base: int, gap: str) -> tuple[Contrast, ...]:
    """For each other row: SAME of the row `base`, minus what `best` lies above the other one."""
    rows = range(len(names))
    return tuple(
        Contrast(
            f"{SAME:.0%} of {gap} minus ({names[best]} minus {names[other_row]})",
            tuple(
                SAME * (row == base) - float(row == best) + float(row == other_row) for row in rows
            ),
        )
        for other_row in rows
        if other_row not in (base, best)
    )


def _at_edge(values: Values) -> Values:
    best = values.mean(axis=-1).argmin(axis=-1)
    return (best == 0) | (best == values.shape[-2] - 1)


FRAGILE = ("adamw", "mars")
ROBUST = ("muon", "normuon", "soap", "adan")
BETWEEN = "lion"
PAPER = (*FRAGILE, *ROBUST, BETWEEN)
"""The optimizers of the paper."""
DELAY = "pipedream_2bw"
"""The schedule of the paper's delay: every gradient is one update old."""


@remembered
def measured(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per pair whose sync trial completed: the columns of `pairs`, those of the arm, its
    `setting`, and `value`: the gap, infinite where the arm diverged.

    Raises as `pairs` does; the report repeats its warnings, so they are silenced here.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        rows = pairs(trials)
    rows = rows[rows["status_sync"] == Status.COMPLETED]
    # Infinite, not left out: a claim that costs are low is not to gain from a divergence.
    value = rows["gap"].astype(float).mask(rows["status"] == Status.DIVERGED, np.inf)
    rows = rows.assign(value=value, setting=rows["point"].map(settings(trials)))
    arms = trials.drop_duplicates("arm")[["arm", *(c for c in OF_ARM if c != "base_arm")]]
    rows = in_order(rows[value.notna()], ["optimizer", *VARIANT, "seed"], trials)
    return rows.merge(arms, on="arm")


def with_key(trials: pd.DataFrame, rows: pd.DataFrame, key: str) -> pd.DataFrame:
    """The rows with the value that their point has for a key of the config."""
    if key not in trials:
        return rows[:0].assign(**{key: np.nan})
    return rows.merge(trials.drop_duplicates("point")[["point", key]], on="point")


def of_points(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """For each optimizer and point: the optimizer, both in words, and the rows."""
    keys = ["optimizer", "setting", "point"]
    for (optimizer, setting, _), group in in_order(rows, keys).groupby(keys, sort=False):
        yield str(optimizer), words(optimizer, setting), group


def words(*parts: Hashable) -> str:
    """`adamw (optimizer.lr=0.004)`; empty parts are left out."""
    first, *other_parts = [str(part) for part in parts if part]
    return f"{first} ({', '.join(other_parts)})" if other_parts else first


def row(name: str, rows: pd.DataFrame, value: str = "value", *, is_shown: bool = True) -> Row:
    """A column of `rows` by seed. A seed with trials of several numbers of stages or microbatches
    has the value of the fewest."""
    # The rows are sorted by stages and microbatches: of a seed the first one has the fewest.
    seeds, first = np.unique(rows["seed"].to_numpy(), return_index=True)
    values = rows[value].to_numpy(float, na_value=np.nan)[first]
    is_known = ~np.isnan(values)
    return Row(name, pd.Series(values[is_known], seeds[is_known]), is_shown)


def share_removed(
    name: str, rows: pd.DataFrame, rule: ClaimRule, optimizer: Hashable
) -> Comparison:
    """What Error Feedback leaves of the gap of the plain delay, among rows of `measured`."""
    arms = [row(arm, rows[rows["arm"] == arm]) for arm in ("delay", "delay_ef")]
    return Comparison(name, arms, rule, optimizer in PAPER)


def at_longest_horizon(trials: pd.DataFrame) -> list[Comparison]:
    """For each optimizer, what Error Feedback leaves of the gap where it trains longest."""
    gaps = measured(trials)
    tokens = gaps["point"].map(trials.groupby("point")["tokens"].max())  # a diverged run has fewer
    compared = []
    for optimizer, rows in gaps.assign(tokens=tokens).groupby("optimizer", sort=False):
        longest = rows[rows["tokens"] == rows["tokens"].max()]
        if {"delay", "delay_ef"} <= {*longest["arm"]}:
            rule = removes(1 - SAME)
            compared.append(share_removed(str(optimizer), longest, rule, optimizer))
    return compared


class Column(NamedTuple):
    """The gap of an arm, with one or more points to choose from."""

    name: str
    rows: pd.DataFrame
    """Rows of `measured`."""

    @property
    def whole_points(self) -> list[pd.DataFrame]:
        """The points with the most seeds, each with its rows by seed."""
        once = self.rows.drop_duplicates(["point", "seed"]).sort_values("seed", kind="stable")
        groups = [rows for _, rows in once.groupby("point")]
        most = max(map(len, groups), default=0)
        return [rows for rows in groups if len(rows) == most]

    @property
    def points(self) -> list[pd.DataFrame]:
        """The whole points without a divergence. If the arm diverged at the point at which sync is
        best, that point alone: to leave it out would flatter the arm."""
        whole = self.whole_points
        if len(whole) > 1:
            num_choosing = _num_choosing(len(whole[0]))
            best = min(whole, key=lambda of: of["final_val_loss_sync"].iloc[:num_choosing].mean())
            if not np.isfinite(best["value"]).all():
                return [best]
            whole = [rows for rows in whole if np.isfinite(rows["value"]).all()]
        return whole


@dataclass(frozen=True)
class AtBest(Above):
    """`Above`, where each column is a gap that has several points to choose from: the one of the
    lowest sync loss on the first third of the seeds, which are then not compared.

    A point that is chosen on the seeds compared has a sync loss that is low by luck, and so a large
    gap; one that is chosen for each seed on the others makes seeds depend on each other (simulated:
    the intervals of either kind miss in more than 5 %).
    Rows: for each column, the sync losses of its points, then their gaps.
    """

    points: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether the contrasts of the gaps at the chosen points lie above 0, or one below."""
        return super().decide(self.columns(values), confidence)

    def why(self, values: Values) -> str:
        """The contrasts of the gaps at the chosen points that decide nothing."""
        return super().why(self.columns(values))

    def numbers(self, values: Values) -> list[Estimate]:
        """The gaps at the chosen points, and their contrasts."""
        columns = self.columns(values)
        gaps = [estimate(name, gap) for name, gap in zip(self.names, columns, strict=True)]
        return [*gaps, *super().numbers(columns)]

    def columns(self, values: Values) -> Values:
        """Shape (..., columns, seeds that did not choose)."""
        num_choosing = _num_choosing(values.shape[-1])
        columns, start = [], 0
        for num in self.points:
            sync, gaps = (values[..., at : at + num, :] for at in (start, start + num))
            # [..., points, seeds] → [...] → [..., 1, 1], with which the gaps are indexed.
            best_index = sync[..., :num_choosing].mean(axis=-1).argmin(axis=-1)[..., None, None]
            columns.append(np.take_along_axis(gaps, best_index, axis=-2)[..., 0, num_choosing:])
            start += 2 * num
        return np.stack(columns, axis=-2)

    def placebo(self, means: Means) -> Means:
        """No gap, and losses of sync as they are: the verdict is on the points that are chosen."""
        # For each column: as many rows of sync losses as points, then as many of gaps.
        is_sync = np.concatenate([np.arange(2 * num) < num for num in self.points])
        return np.where(is_sync, means, 0.0)


def _num_choosing(num_seeds: int) -> int:
    """How many of the seeds choose a point; the others compare."""
    return max(1, num_seeds // 3)


def more(what: str, less: Column, greater: Column) -> Comparison:
    """That the second gap is larger, each at the point where its sync is best.

    It judges the paper if every optimizer in it is the paper's.
    """
    columns = (less, greater)
    contrast = Contrast(f"{greater.name} minus {less.name}", (-1.0, 1.0))
    choices = [column.points for column in columns]
    optimizers = {name for column in columns for name in column.rows["optimizer"]}
    counts = optimizers <= {*PAPER}
    # Nothing to choose, so that all seeds compare; or nothing to compare, which `flaw` says.
    if not all(choices) or all(len(column.whole_points) == 1 for column in columns):
        rows = [
            row(column.name, points[0] if points else column.rows)
            for column, points in zip(columns, choices, strict=True)
        ]
        return Comparison(what, rows, Above((contrast,)), counts)
    rows = [
        row(column.name, point, value, is_shown=False)
        for column, points in zip(columns, choices, strict=True)
        for value in ("final_val_loss_sync", "value")
        for point in points
    ]
    names = tuple(column.name for column in columns)
    sizes = tuple(len(points) for points in choices)
    return Comparison(what, rows, AtBest((contrast,), points=sizes, names=names), counts)


def ends(rows: pd.DataFrame, key: str) -> list[Column]:
    """The columns of the smallest and the largest value of a key; fewer without two of them."""
    values = sorted({*rows[key].dropna()})
    return [
        Column(f"{key.rpartition('.')[2]} {value:g}", rows[rows[key] == value])
        for value in (values[:1] + values[1:][-1:])  # a single value once
    ]
