"""The best setting of an arm against the best setting of sync, over the grid that both have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.chosen import chosen
from analysis.statistics.intervals import (
    CONFIDENCE,
    Interval,
    Values,
    mean_intervals,
)
from analysis.statistics.pairs import VARIANT, pairs
from analysis.table.points import settings
from analysis.table.schema import BEST
from analysis.table.tasks import tasks

ROW = ["optimizer", "task", "arm", *VARIANT]
Losses = NDArray[np.float64]
"""Final losses, shape (points, seeds); infinite where the trial diverged."""


def best(df: pd.DataFrame, choice: Collection[int] = ()) -> pd.DataFrame:
    """Best over the grid, in nats per token, from `load`'s table; columns: `schema.BEST`.

    Each arm is taken at the setting of its own lowest mean loss. Choosing and comparing on the same
    seeds (`gap_same_seeds`) flatters the arm whose losses are noisier, or alike at more settings.
    So `gap` chooses both settings for each seed on all other seeds, and compares them on that seed:
    it has no bias, down to two seeds. The held-out gaps share the seeds that chose, so they are not
    independent: `low` and `high` are those of `interval_of_best`. Measured coverage: 95 % or more
    at 3 to 16 seeds, on grids whose settings are alike or not.

    `choice`: the seeds of choice of a search (`search.seeds`), if there was one. Then the mean loss
    at these alone chooses, over all settings that were tried and all coefficients of an arm, and
    the others compare: `low` and `high` are Student's t, and `gap_same_seeds` is missing.

    The grid holds the points of one task (see tasks.py) at which both arms have a result for every
    seed of the point with the most seeds. Raises and warns as `pairs.pairs` does.
    """
    if df.empty:
        return _table([])
    words = settings(df)
    if choice:
        return _table(chosen(df, choice, tasks(df), words))
    rows = [{**dict(zip(ROW, key, strict=True)), **_row(found, words)} for key, found in grids(df)]
    return _table(rows)


def grids(df: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], Grid]]:
    """The grid of each ROW that has a pair, from `load`'s table, which is not empty."""
    found = pairs(df)
    found = found[found["status_sync"].notna()]
    for key, group in found.assign(task=found["point"].map(tasks(df))).groupby(ROW):
        yield key, _grid(group)


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[*BEST])
    table = table.astype({name: dtype for name, (dtype, _) in BEST.items()})
    return table.sort_values(ROW, ignore_index=True)


def _row(grid: Grid, words: dict[str, str]) -> dict[str, Any]:
    counts = {
        "pairs": len(grid.seeds),
        "num_points": len(grid.points),
        "incomplete": grid.incomplete,
        "sync_diverged": grid.sync_diverged,
        "arm_diverged": int(np.isinf(grid.arm).any(axis=1).sum()),
        "n": 0,
    }
    found = compare(grid.sync, grid.arm)
    if found is None:
        return counts
    return {
        **counts,
        "n": len(found.held_out),
        "gap": found.held_out.mean() if len(found.held_out) else np.nan,
        "low": found.interval[0],
        "high": found.interval[1],
        "gap_same_seeds": found.same_seeds.mean(),
        "loss_sync": grid.sync[found.sync].mean(),
        "loss": grid.arm[found.arm].mean(),
        "point_sync": grid.points[found.sync],
        "point": grid.points[found.arm],
        "setting_sync": words[grid.points[found.sync]],
        "setting": words[grid.points[found.arm]],
    }


class Compared(NamedTuple):
    """Two arms at the best setting of each: rows of the losses, and one gap per seed."""

    sync: int
    arm: int
    same_seeds: Values
    held_out: Values
    """Those seeds are missing at which the arm diverged when they were held out."""
    interval: Interval


def compare(sync: Losses, arm: Losses) -> Compared | None:
    """What `best` says of losses of shape (points, seeds); None if an arm completed at no point."""
    chosen, chosen_sync = _lowest(arm), _lowest(sync)
    if chosen is None or chosen_sync is None:
        return None
    same_seeds = arm[chosen] - sync[chosen_sync]
    gaps = held_out_gaps(sync, arm)
    held_out = gaps[np.isfinite(gaps)]
    interval = _interval(same_seeds, held_out)
    return Compared(chosen_sync, chosen, same_seeds, held_out, interval)


def _interval(same_seeds: Values, held_out: Values) -> Interval:
    low, high = interval_of_best(same_seeds, held_out)
    return float(low), float(high)


def _lowest(losses: Losses) -> int | None:
    """The row of the lowest mean; None if every row holds a divergence, or there is none."""
    means = losses.mean(axis=1) if losses.size else np.array([np.inf])
    return int(means.argmin()) if np.isfinite(means).any() else None


def held_out_gaps(sync: Losses, arm: Losses) -> Values:
    """For losses of shape (..., points, seeds), the gap at each seed of the settings that are best
    on the others, shape (..., seeds); infinite if the arm diverged there, if it diverged on the
    others at every setting, or if there are no others."""
    base = at_best_on_others(sync, sync)
    known = np.isfinite(base)
    return np.where(known, at_best_on_others(arm, arm) - np.where(known, base, 0.0), np.inf)


def interval_of_best(
    same_seeds: Values, held_out: Values, confidence: float = CONFIDENCE
) -> tuple[Values, Values]:
    """Ends of the interval of the difference of two bests, from gaps of shape (..., n) at settings
    chosen on all seeds, and for each seed on the others.

    It encloses Student's t-intervals of both, the latter with the variance of `folds_share`.
    """
    of_same = mean_intervals(same_seeds, confidence)
    low, high = mean_intervals(held_out, confidence)
    middle, half = (low + high) / 2, np.sqrt(folds_share(held_out.shape[-1])) * (high - low) / 2
    return np.minimum(of_same[0], middle - half), np.maximum(of_same[1], middle + half)


def folds_share(n: int) -> float:
    """By how much the variance of a mean over n seeds exceeds s²/n, if each seed has the setting
    that is best on the others: (1/n + 1/(n - 1)) / (1/n) (Nadeau, Bengio 2003)."""
    return 1 + n / max(1, n - 1)


def at_best_on_others(losses: Losses, values: Losses) -> Values:
    """For each seed, the value at the point of the lowest mean loss on the other seeds.

    Both have the shape (..., points, seeds), the result (..., seeds); it is infinite where there is
    no such point.
    """
    diverged = np.isinf(losses)
    finite = np.where(diverged, 0.0, losses)
    others = finite.sum(axis=-1, keepdims=True) - finite
    lost = diverged.sum(axis=-1, keepdims=True) > diverged
    others = np.where(lost | (losses.shape[-1] < 2), np.inf, others)
    chosen = others.argmin(axis=-2)[..., None, :]
    taken = np.take_along_axis(values, chosen, axis=-2)[..., 0, :]
    return np.where(np.isinf(others.min(axis=-2)), np.inf, taken)


class Grid(NamedTuple):
    """The points that are compared, and how many are not: sync diverged there, or a seed is
    missing."""

    points: list[str]
    seeds: list[int]
    sync: Losses
    arm: Losses
    sync_diverged: int
    incomplete: int


def _grid(group: pd.DataFrame) -> Grid:
    seeds_by_point = {str(point): sorted(rows["seed"]) for point, rows in group.groupby("point")}
    seeds = max(seeds_by_point.values(), key=len)
    whole = [point for point, has in seeds_by_point.items() if {*has} >= {*seeds}]
    shape = {"index": "point", "columns": "seed"}
    sync, arm = (
        group.pivot(values=name, **shape).loc[whole, seeds].to_numpy(dtype=float, na_value=np.inf)
        for name in ("final_val_loss_sync", "final_val_loss")
    )
    fair = np.isfinite(sync).all(axis=1)
    points = [point for point, kept in zip(whole, fair, strict=True) if kept]
    incomplete = len(seeds_by_point) - len(whole)
    return Grid(points, seeds, sync[fair], arm[fair], int((~fair).sum()), incomplete)
