"""The best setting of an arm against the best setting of sync, over the grid that both have."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis.statistics.intervals import (
    Interval,
    Values,
    held_out_gaps,
    interval_of_best,
    mean_interval,
)
from pipegap.analysis.statistics.pairs import VARIANT, pairs
from pipegap.analysis.table.points import settings
from pipegap.analysis.table.schema import BEST
from pipegap.analysis.table.tasks import in_order, tasks

ROW = ["optimizer", "task", "arm", *VARIANT]
CHOSEN_ROW = ["optimizer", "task", "family", *VARIANT]
SETTING = ["point", "arm"]
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
        return _table([], df)
    words, paired = settings(df), _paired(df)
    if choice:  # an arm stands for all of its coefficients, of which each may be a setting
        family = paired["trial_id"].map(df.set_index("trial_id")["family"])
        groups = paired.assign(family=family).groupby(CHOSEN_ROW)
        rows = [
            (key, _row_of_choice(group, choice, words))
            for key, group in groups
            if group["seed"].isin(choice).any()
        ]
    else:
        rows = [(key, _row(_grid(group), words)) for key, group in paired.groupby(ROW)]
    return _table([dict(zip(ROW, key, strict=True)) | row for key, row in rows], df)


def grids(df: pd.DataFrame) -> "Iterator[tuple[tuple[Any, ...], Grid]]":
    """The grid of each ROW that has a pair, from `load`'s table, which is not empty."""
    for key, group in _paired(df).groupby(ROW):
        yield key, _grid(group)


def _paired(df: pd.DataFrame) -> pd.DataFrame:
    """The pairs that have a sync trial, with their task."""
    paired = pairs(df)
    paired = paired[paired["status_sync"].notna()]
    return paired.assign(task=paired["point"].map(tasks(df)))


def _table(rows: list[dict[str, Any]], trials: pd.DataFrame) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[*BEST])
    table = table.astype({name: dtype for name, (dtype, _) in BEST.items()})
    return in_order(table, ROW, trials).reset_index(drop=True)


def _row(grid: "Grid", words: dict[str, str]) -> dict[str, Any]:
    counts = {
        "pairs": len(grid.seeds),
        "num_points": len(grid.points),
        "incomplete": grid.incomplete,
        "sync_diverged": grid.sync_diverged,
        "arm_diverged": int(np.isinf(grid.arm).any(axis=1).sum()),
        "n": 0,
    }
    compared = compare(grid.sync, grid.arm)
    if compared is None:
        return counts
    return {
        **counts,
        "n": len(compared.held_out),
        "gap": compared.held_out.mean() if len(compared.held_out) else np.nan,
        "low": compared.interval[0],
        "high": compared.interval[1],
        "gap_same_seeds": compared.same_seeds.mean(),
        "loss_sync": grid.sync[compared.sync].mean(),
        "loss": grid.arm[compared.arm].mean(),
        "point_sync": grid.points[compared.sync],
        "point": grid.points[compared.arm],
        "setting_sync": words[grid.points[compared.sync]],
        "setting": words[grid.points[compared.arm]],
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
    best_point, chosen_sync = _lowest(arm), _lowest(sync)
    if best_point is None or chosen_sync is None:
        return None
    same_seeds = arm[best_point] - sync[chosen_sync]
    gaps = held_out_gaps(sync, arm)
    held_out = gaps[np.isfinite(gaps)]
    low, high = map(float, interval_of_best(same_seeds, held_out))
    return Compared(chosen_sync, best_point, same_seeds, held_out, (low, high))


def _lowest(losses: Losses) -> int | None:
    """The row of the lowest mean; None if every row holds a divergence, or there is none."""
    means = losses.mean(axis=1) if losses.size else np.array([np.inf])
    return int(means.argmin()) if np.isfinite(means).any() else None


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
    points = [point for point, is_fair in zip(whole, fair, strict=True) if is_fair]
    incomplete = len(seeds_by_point) - len(whole)
    return Grid(points, seeds, sync[fair], arm[fair], int((~fair).sum()), incomplete)


def _row_of_choice(
    group: pd.DataFrame, choice: Collection[int], words: dict[str, str]
) -> dict[str, Any]:
    means, sync_diverged, incomplete = _settings(group[group["seed"].isin(choice)])
    tried = means["arm_loss"]
    counts = {
        **{"n": 0, "pairs": 0, "num_points": len(tried)},
        "arm_diverged": int(np.isinf(tried).sum()),
        **{"sync_diverged": sync_diverged, "incomplete": incomplete},
    }
    if tried.empty or np.isinf(tried.min()):
        return counts
    at, arm = tried.index[int(tried.to_numpy().argmin())]
    at_sync = str(means["sync_loss"].groupby("point").first().idxmin())
    held_out = group[~group["seed"].isin(choice)]
    arm_rows = held_out[(held_out["point"] == at) & (held_out["arm"] == arm)].set_index("seed")
    base = held_out[held_out["point"] == at_sync].drop_duplicates("seed").set_index("seed")
    seeds = arm_rows.index.intersection(base.index[base["final_val_loss_sync"].notna()])
    sync = base.loc[seeds, "final_val_loss_sync"]
    gaps = (arm_rows.loc[seeds, "final_val_loss"] - sync).dropna()
    low, high = mean_interval(gaps.to_numpy(dtype=float))
    coefficient = "" if arm == group["family"].iloc[0] else arm
    return {
        **counts,
        "n": len(gaps),
        "pairs": len(seeds),
        "gap": gaps.mean(),
        "low": low,
        "high": high,
        "loss_sync": sync[gaps.index].mean(),
        "loss": arm_rows.loc[gaps.index, "final_val_loss"].mean(),
        "point_sync": at_sync,
        "point": at,
        "setting_sync": words[at_sync],
        "setting": ", ".join(filter(None, (words[at], coefficient))),
    }


def _settings(tried: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Mean losses by SETTING at the seeds of choice, infinite where the arm diverged at one.

    Left out, and counted beside them: the settings at which sync diverged, or that lack a seed.
    """
    seeds = tried.groupby(SETTING)["seed"].nunique()
    whole = seeds[seeds == tried["seed"].nunique()].index
    losses = tried.assign(
        arm_loss=tried["final_val_loss"].fillna(np.inf),
        sync_loss=tried["final_val_loss_sync"].fillna(np.inf),
    ).groupby(SETTING)[["arm_loss", "sync_loss"]]
    means = losses.mean().loc[whole].sort_index()
    fair = means[np.isfinite(means["sync_loss"])]
    return fair, len(means) - len(fair), len(seeds) - len(whole)
