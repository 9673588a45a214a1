"""The gap of every arm at every point, and of its best setting against the best setting of sync."""

import warnings
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipegap.analysis.statistics.pairs import (
    ENOUGH_UPDATES,
    SAME_ARM,
    SAME_TRIAL,
    VARIANT,
    Interval,
    Values,
    held_out_gaps,
    interval_of_best,
    mean_interval,
    mean_with_ends,
    pairs,
    share_interval,
)
from pipegap.analysis.statistics.tax import Tax, taxes
from pipegap.analysis.table.load import load
from pipegap.analysis.table.points import (
    MACHINE,
    in_order,
    machines,
    mixed_machines,
    settings,
    tasks,
)
from pipegap.analysis.table.schema import BEST, GAP, OF_ARM, table_of
from pipegap.trainer.base.errors import Status

# The gap of every arm at every point: its mean, interval and counts; what it spreads by.
#
# And where a point lies outside of the paper's regime: its numbers say little about the paper's.

COUNTS = ["n", "diverged", "pairs", "sync_diverged", "removed_n"]
Seeds = Mapping[Any, set[int]]
LOSSES = ("gap", "gap_plain", "final_val_loss", "final_val_loss_sync")
Group = Mapping[str, NDArray[Any]]
"""Pairs of one arm at one point: columns of shape (pairs,)."""
LEAST_FREEDOM = 2
"""Degrees of freedom of a standard deviation: with one, it may be thirty times too small."""
MEMORIES = 100
"""The least number of updates of a run for each update that a momentum remembers, which is
1 / (1 - momentum): in a shorter run the buffer is a part of the run itself. In the paper there are
more than 500."""
MEAN_FACTOR = 0.55
"""The mean of the paper's learning-rate schedule, as a share of its peak."""
DECAYED = 1.0
"""The least sum of learning rate · weight decay over a run: with less, decay has not forgotten the
initial weights at the end, and does little. In the paper the sum is about 1.6 to 4."""
TOLERANCE = 1e-6
SHORT = f"T < {MEMORIES} / (1 - momentum)"
INACTIVE = "decay inactive"
OF_REGIME = [f"optimizer.{key}" for key in ("momentum", "lr", "weight_decay")]
MOMENTUM, RATE, DECAY = OF_REGIME


class Spread(NamedTuple):
    """Spread of an optimizer's paired gaps around the mean of their point and arm, pooled."""

    sd: float
    """Nats per token."""
    num_pairs: int


def gaps(df: pd.DataFrame) -> pd.DataFrame:
    """Paired gaps in nats per token, from `load`'s table; columns: `schema.GAP`.

    The mean is over the seeds of which both trials completed. A seed whose sync trial diverged is
    left out and counted. A seed at which only the arm diverged is counted beside the mean
    (`diverged` of `pairs`). Every point has a row for every arm of the table, so that a missing arm
    is named (n = 0); a point at which sync was not asked for, as that of longer delayed runs, has
    none, unless the optimizer was never trained with sync. Warns and raises as `pairs.pairs` does.
    """
    if df.empty:
        return _table([], df)
    paired = pairs(df)
    tax = taxes(df, paired)
    groups = _groups(_with_plain_gap(paired))
    seeds: Seeds = {key: set(column) for key, column in df.groupby("point")["seed"]}
    rows = [_row(key, group, seeds[key[1]]) | tax[key]._asdict() for key, group in groups.items()]
    rows += _absent(df, {key[:3] for key in groups}, seeds)
    # Sync was not asked for at a point of longer delayed runs: other points of its optimizer have
    # a sync trial, done or not.
    sync = df[df["arm"] == "sync"]
    may_lack = df["optimizer"].isin(sync["optimizer"])
    unasked = {*df.loc[may_lack & ~df["settings_key"].isin(sync["settings_key"]), "point"]}
    rows = [row for row in rows if row["point"] not in unasked]
    words, outside = settings(df), regimes(df)
    arms: dict[Any, Any] = df.drop_duplicates("arm").set_index("arm")[[*OF_ARM]].to_dict("index")
    for row in rows:
        row.update(setting=words[row["point"]], regime=outside[row["point"]], **arms[row["arm"]])
    return _table(rows, df)


def _table(rows: list[dict[str, Any]], trials: pd.DataFrame) -> pd.DataFrame:
    keys = ["optimizer", "setting", "point", "arm", *VARIANT]
    return in_order(table_of(rows, GAP), keys, trials).reset_index(drop=True)


def _with_plain_gap(paired: pd.DataFrame) -> pd.DataFrame:
    """Adds `gap_plain` and `status_plain`, those of the same trial without a correction."""
    twin = paired[[*SAME_TRIAL, "gap", "status"]].rename(columns={"arm": "base_arm"})
    keys = ["base_arm" if key == "arm" else key for key in SAME_TRIAL]
    return paired.merge(twin, on=keys, how="left", suffixes=("", "_plain"))


def _groups(paired: pd.DataFrame) -> dict[tuple[Any, ...], Group]:
    """The pairs of each arm at each point, by the values of SAME_ARM."""
    status = paired["status_sync"]
    columns = {
        **{name: paired[name].to_numpy() for name in ("seed", "delay")},
        **{name: paired[name].to_numpy(float) for name in LOSSES},
        "is_fair": status.eq(Status.COMPLETED).fillna(False).to_numpy(bool),
        "sync_diverged": status.eq(Status.DIVERGED).fillna(False).to_numpy(bool),
        "no_sync": status.isna().to_numpy(),
        "has_plain": (
            paired["status_plain"].notna() & (paired["arm"] != paired["base_arm"])
        ).to_numpy(bool),
    }
    rows: dict[Any, Any] = dict(paired.groupby(SAME_ARM).indices)
    # A table per group would take ten times as long.
    return {key: {name: column[at] for name, column in columns.items()} for key, at in rows.items()}


def _row(key: tuple[Any, ...], group: Group, seeds: set[int]) -> dict[str, Any]:
    has_gap = ~np.isnan(group["gap"])
    gap = group["gap"][has_gap]
    mean, low, high = mean_with_ends(gap)
    num_fair = int(group["is_fair"].sum())
    return {
        **dict(zip(SAME_ARM, key, strict=True)),
        "delay": max(filter(pd.notna, group["delay"]), default=None),
        "n": len(gap),
        "gap": mean,
        "low": low,
        "high": high,
        "loss_sync": _mean(group["final_val_loss_sync"][has_gap]),
        "loss": _mean(group["final_val_loss"][has_gap]),
        "diverged": num_fair - len(gap),  # sync completed, and there is no gap
        "pairs": num_fair,
        "sync_diverged": int(group["sync_diverged"].sum()),
        **_removed(group),
        "missing_seeds": _words(seeds - set(group["seed"])),
        "missing_sync_seeds": _words(group["seed"][group["no_sync"]]),
    }


def _mean(values: Values) -> float:
    return float(values.mean()) if len(values) else np.nan


def _removed(group: Group) -> dict[str, float]:
    """The share of the gap that a correction removes, over the seeds that both arms have.

    It is missing where a trial of either arm diverged, since the survivors would flatter the arm
    (`removed_n` is 0), and where the plain gap is too weak for an interval of the share.
    """
    comparable = group["is_fair"] & group["has_plain"]
    gap, plain_gap = group["gap"][comparable], group["gap_plain"][comparable]
    low, high = share_interval(gap, plain_gap)
    is_known = not np.isnan(low)
    return {
        "removed": 1 - gap.mean() / plain_gap.mean() if is_known else np.nan,
        "removed_low": 1 - high,  # the interval is of the share that is left
        "removed_high": 1 - low,
        "removed_n": 0 if np.isnan([*gap, *plain_gap]).any() else len(gap),
    }


def _absent(
    trials: pd.DataFrame, present: set[tuple[Any, ...]], seeds: Seeds
) -> Iterator[dict[str, Any]]:
    """Rows of the arms that occur somewhere but have no result at a point."""
    # An unfinished trial has not recorded its data: its point is not known in full.
    recorded = trials[trials["status"] != Status.UNFINISHED]
    arms = sorted(set(trials["arm"]) - {"sync"})
    points = recorded[["optimizer", "point"]].drop_duplicates().itertuples(index=False)
    for (optimizer, point), arm in product(points, arms):
        if (optimizer, point, arm) not in present:
            yield {
                **{"optimizer": optimizer, "point": point, "arm": arm},
                **dict.fromkeys(COUNTS, 0),
                **Tax(tax_why="no trial")._asdict(),
                **{"missing_seeds": _words(seeds[point]), "missing_sync_seeds": ""},
            }


def _words(seeds: Iterable[int]) -> str:
    return ", ".join(str(seed) for seed in sorted(seeds))


def regimes(trials: pd.DataFrame) -> dict[Hashable, str]:
    """Point → which of SHORT and INACTIVE its runs are, in words; empty for neither.

    An optimizer without a momentum or a decay of that name is not judged by it.
    """
    columns = trials.reindex(columns=["point", "num_updates", MOMENTUM, RATE, DECAY])
    numbers = columns.set_index("point").astype("float64")
    longest = numbers.groupby("point").max()  # a run that diverged is shorter
    return {
        row["point"]: ", ".join(
            reason for reason, least in _least(row).items() if row["num_updates"] < least
        )
        for row in longest.reset_index().to_dict("records")
    }


def deciding_updates(trial: Mapping[Hashable, float]) -> float:
    """Return how many updates a trial of these settings needs at least to decide something: no
    smoke test, and within the paper's regime. Infinite where no length is within it."""
    # NaN, of a value that the optimizer does not have, becomes 0 and asks for nothing.
    return max(ENOUGH_UPDATES, *np.nan_to_num([*_least(trial).values()], posinf=np.inf))


def _least(trial: Mapping[Hashable, float]) -> dict[str, float]:
    """Reason → the fewest updates that are within the regime; NaN, so never too few, where a
    value is missing."""
    memory, decayed = 1 - trial[MOMENTUM], trial[RATE] * trial[DECAY] * MEAN_FACTOR
    return {
        SHORT: (MEMORIES - TOLERANCE) / memory if memory else np.inf,
        INACTIVE: (DECAYED - TOLERANCE) / decayed if decayed else np.inf,
    }


def spreads(results: Path, trial_ids: Collection[str]) -> dict[str, Spread]:
    """The spread of each optimizer in these trials of a store.

    An optimizer with fewer degrees of freedom than LEAST_FREEDOM is left out. Raises as `load` and
    `pairs` do; the report repeats their warnings, so they are silenced here.
    """
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        trials = load(results, trial_ids)
        if trials.empty:
            return {}
        paired = pairs(trials)
    groups = paired.groupby(SAME_ARM)["gap"].agg(["var", "count"])
    several = groups[groups["count"] > 1]
    return {
        str(optimizer): Spread(
            # Pooled: each group's variance by its degrees of freedom.
            float(np.sqrt(np.average(of_optimizer["var"], weights=of_optimizer["count"] - 1))),
            int(of_optimizer["count"].sum()),
        )
        for optimizer, of_optimizer in several.groupby("optimizer", sort=False)
        if (of_optimizer["count"] - 1).sum() >= LEAST_FREEDOM
    }


# The best setting of an arm against the best setting of sync, over the grid that both have.

ROW = ["optimizer", "task", "arm", *VARIANT]
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

    The grid holds the points of one task (`points.tasks`) at which both arms have a result for
    every seed of the point with the most seeds. Raises and warns as `pairs.pairs` does.
    """
    if df.empty:
        return _best_table([], df)
    words, paired = settings(df), _paired(df)
    if choice:  # an arm stands for all of its coefficients, of which each may be a setting
        family = paired["trial_id"].map(df.set_index("trial_id")["family"])
        groups = paired.assign(family=family).groupby(["optimizer", "task", "family", *VARIANT])
        rows = [
            (key, _row_of_choice(group, choice, words))
            for key, group in groups
            if group["seed"].isin(choice).any()
        ]
    else:
        rows = [(key, _best_row(_grid(group), words)) for key, group in paired.groupby(ROW)]
    return _best_table([dict(zip(ROW, key, strict=True)) | row for key, row in rows], df)


def grids(df: pd.DataFrame) -> "Iterator[tuple[tuple[Any, ...], Grid]]":
    """The grid of each ROW that has a pair, from `load`'s table, which is not empty."""
    for key, group in _paired(df).groupby(ROW):
        yield key, _grid(group)


def _paired(df: pd.DataFrame) -> pd.DataFrame:
    """The pairs that have a sync trial, with their task."""
    paired = pairs(df)
    paired = paired[paired["status_sync"].notna()]
    paired = paired.assign(task=paired["point"].map(tasks(df)))
    # Each of its pairs may be of one machine, and the best settings of two arms of two.
    of_sync = paired[[*ROW, "seed", *(f"{name}_sync" for name in MACHINE)]]
    of_sync = of_sync.rename(columns=lambda name: name.removesuffix("_sync"))
    sides = pd.concat([paired, of_sync], ignore_index=True)
    keys = [sides[name] for name in (*ROW, "seed")]
    if mixed := mixed_machines(machines(sides), keys, "seeds with settings to choose from"):
        warnings.warn(mixed, stacklevel=3)
    return paired


def _best_table(rows: list[dict[str, Any]], trials: pd.DataFrame) -> pd.DataFrame:
    return in_order(table_of(rows, BEST), ROW, trials).reset_index(drop=True)


def _best_row(grid: "Grid", words: dict[str, str]) -> dict[str, Any]:
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
    # A setting without all seeds would be chosen on fewer, and so more by luck.
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
    # Sync has one loss per point, repeated for each coefficient of the arm.
    at_sync = str(means["sync_loss"].groupby("point").first().idxmin())
    held_out = group[~group["seed"].isin(choice)]
    arm_rows = held_out[(held_out["point"] == at) & (held_out["arm"] == arm)].set_index("seed")
    base = held_out[held_out["point"] == at_sync].drop_duplicates("seed").set_index("seed")
    seeds = arm_rows.index.intersection(base.index[base["final_val_loss_sync"].notna()])
    sync = base.loc[seeds, "final_val_loss_sync"]
    gaps = (arm_rows.loc[seeds, "final_val_loss"] - sync).dropna()
    low, high = mean_interval(gaps.to_numpy(dtype=float))
    coefficient = "" if arm == group["family"].iloc[0] else arm  # the usual one needs no words
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
