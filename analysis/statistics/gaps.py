"""The gap of every arm at every point, with what may be said about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.intervals import UNKNOWN, excludes_zero, mean_interval, ratio_interval
from analysis.pairs import SAME_TRIAL, VARIANT, pairs
from analysis.points import settings
from analysis.schema import GAP

BOOTSTRAP_SEED = 0
ROW = ["optimizer", "point", "arm", *VARIANT]
COUNTS = ["n", "diverged", "pairs", "sync_diverged", "removed_n"]
Seeds = Mapping[Any, set[int]]


def gaps(df: pd.DataFrame) -> pd.DataFrame:
    """Paired gaps in nats per token, from `load`'s table; columns: `schema.GAP`.

    Averaged are the seeds of which both trials completed. A seed whose sync trial diverged is left
    out and counted; one at which only the arm diverged is counted beside the mean (`diverged` of
    `pairs`). Every point has a row for every arm that occurs anywhere in the table, so that
    an arm that is missing is named (n = 0). Warns and raises as `pairs.pairs` does.
    """
    if df.empty:
        return _table([])
    found = _with_plain_gap(pairs(df))
    groups = dict(iter(found.groupby(ROW)))
    seeds: Seeds = {key: set(column) for key, column in df.groupby("point")["seed"]}
    rows = [_row(key, group, seeds[key[1]]) for key, group in groups.items()]
    rows += _absent(df, {key[:3] for key in groups}, seeds)
    words = settings(df)
    return _table([{**row, "setting": words[row["point"]]} for row in rows])


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=[*GAP])
    table = table.astype({name: dtype for name, (dtype, _) in GAP.items()})
    return table.sort_values(["optimizer", "setting", "point", "arm", *VARIANT], ignore_index=True)


def _with_plain_gap(found: pd.DataFrame) -> pd.DataFrame:
    """Adds `gap_plain` and `status_plain`: of the same trial's twin without a correction."""
    twin = found[[*SAME_TRIAL, "gap", "status"]].rename(columns={"arm": "base_arm"})
    keys = ["base_arm" if key == "arm" else key for key in SAME_TRIAL]
    return found.merge(twin, on=keys, how="left", suffixes=("", "_plain"))


def _row(key: tuple[Any, ...], group: pd.DataFrame, seeds: set[int]) -> dict[str, Any]:
    paired = group[group["gap"].notna()]
    low, high = _interval(paired["gap"])
    fair = group[group["status_sync"] == "completed"]
    return {
        **dict(zip(ROW, key, strict=True)),
        "n": len(paired),
        "gap": paired["gap"].mean(),
        "low": low,
        "high": high,
        "loss_sync": paired["final_val_loss_sync"].mean(),
        "loss": paired["final_val_loss"].mean(),
        "diverged": len(fair) - len(paired),
        "pairs": len(fair),
        "sync_diverged": int((group["status_sync"] == "diverged").sum()),
        **_removed(fair),
        "missing_seeds": _words(seeds - set(group["seed"])),
        "missing_sync_seeds": _words(group.loc[group["status_sync"].isna(), "seed"]),
    }


def _removed(fair: pd.DataFrame) -> dict[str, float]:
    """Share of the gap that a correction removes, from the seeds that both arms have.

    None where a trial of either arm diverged (the survivors would flatter it), and where the
    interval of the plain gap holds 0: then nothing is there to be removed.
    """
    nothing = {"removed": np.nan, "removed_low": np.nan, "removed_high": np.nan, "removed_n": 0}
    both = fair[fair["status_plain"].notna() & (fair["arm"] != fair["base_arm"])]
    gap, plain_gap = both["gap"].to_numpy(), both["gap_plain"].to_numpy()
    if np.isnan([gap, plain_gap]).any() or not excludes_zero(_interval(both["gap_plain"])):
        return nothing
    low, high = ratio_interval(gap, plain_gap)
    if np.isnan(low):  # from n = 20 on the bootstrap may exclude the 0 that Fieller's does not
        return nothing
    share = 1 - gap.mean() / plain_gap.mean()
    return {
        "removed": share,
        "removed_low": 1 - high,
        "removed_high": 1 - low,
        "removed_n": len(both),
    }


def _interval(gap: pd.Series) -> tuple[float, float]:
    """A fresh generator a row: no interval depends on which other rows there are."""
    if not len(gap):
        return UNKNOWN
    return mean_interval(gap.to_numpy(), np.random.default_rng(BOOTSTRAP_SEED))


def _absent(
    trials: pd.DataFrame, present: set[tuple[Any, ...]], seeds: Seeds
) -> Iterator[dict[str, Any]]:
    """Rows of the arms that occur somewhere but have no result at a point."""
    # An unfinished trial has not recorded its data: its point is not known in full.
    known = trials[trials["status"] != "unfinished"]
    arms = sorted(set(trials["arm"]) - {"sync"})
    for optimizer, point in known[["optimizer", "point"]].drop_duplicates().itertuples(index=False):
        for arm in arms:
            if (optimizer, point, arm) not in present:
                yield {
                    "optimizer": optimizer,
                    "point": point,
                    "arm": arm,
                    **dict.fromkeys(COUNTS, 0),
                    "missing_seeds": _words(seeds[point]),
                    "missing_sync_seeds": "",
                }


def _words(seeds: Iterable[int]) -> str:
    return ", ".join(str(seed) for seed in sorted(seeds))
