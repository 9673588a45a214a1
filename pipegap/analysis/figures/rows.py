"""What the tables of figures share: columns, names of panels, means, paired seeds, and points: the
best ones, and those that differ in given keys alone."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from pipegap.analysis.statistics.intervals import mean_interval
from pipegap.analysis.statistics.pairs import SAME_ARM, VARIANT, pairs, results
from pipegap.analysis.table import names
from pipegap.analysis.table.points import group_of, remembered, varied
from pipegap.analysis.table.tasks import in_order
from pipegap.trainer.base.status import Status

PANEL = ["panel", "subtitle"]
"""The title of a panel, and the lines below it; both together tell panels apart."""
MEAN = ["n", "mean", "low", "high", "diverged", "pairs"]
"""A mean with its 95 % interval; of all `pairs`, `diverged` are not among its n."""
SERIES = ["series", "arm", *VARIANT]
"""The label of a line or row, and the arm, stages and microbatches that it stands for."""
OF_SEED = ["seed", "trial_id", "status"]
"""What tells one point of a figure from another."""
OF_GAPS = [*PANEL, "optimizer", "key", "value", *SERIES, "gap", *OF_SEED, *MEAN]
"""A figure of gaps against `value` of `key`: one row per seed; a reference line has no value."""
IN_PANEL = ["series", "value", "seed"]
"""Order of the rows of a panel of OF_GAPS."""
COMPARABLE = ["optimizer", "num_parameters", "data_hash"]
"""Losses of different models or data are never in one panel."""


def in_lines(parts: Iterable[str]) -> str:
    """Return the parts that are not empty, in lines."""
    return "\n".join(part for part in parts if part)


def with_variant(trials: pd.DataFrame, labels: pd.Series) -> list[str]:
    """Return `labels`, with stages and microbatches where a point has several of one label."""
    variants = trials.groupby(["point", labels.rename("label")])[VARIANT].nunique().max(axis=1)
    rows = trials.assign(label=labels)[["point", "label", *VARIANT]].itertuples(index=False)
    return [
        label if variants[point, label] == 1 else f"{label} (p = {p}, m = {m})"
        for point, label, p, m in rows
    ]


def mean_of(values: pd.Series) -> dict[str, float]:
    """Return MEAN of `values`; the values of diverged trials are missing, and counted."""
    finite_values = values.dropna().to_numpy(dtype=float)
    low, high = mean_interval(finite_values)
    mean = finite_values.mean() if len(finite_values) else np.nan
    counts = len(finite_values), mean, low, high, len(values) - len(finite_values), len(values)
    return dict(zip(MEAN, counts, strict=True))


def with_means(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """Return `table` with MEAN of its `column` over the rows that have equal `keys`."""
    if table.empty:
        return table.reindex(columns=[*dict.fromkeys([*table, *MEAN])])
    means = [
        {**dict(zip(keys, key, strict=True)), **mean_of(values)}
        for key, values in table.groupby([*keys], sort=False)[column]
    ]
    return table.merge(pd.DataFrame(means, columns=[*keys, *MEAN]), on=[*keys])


@remembered
def paired_seeds(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial whose sync partner completed: the columns of `pairs` and MEAN.

    `gap` is NaN if the trial diverged. `series` is the name of the arm, as `with_variant` writes
    it. MEAN comes from the arm's row of `gaps`.
    """
    if trials.empty:
        return pd.DataFrame(columns=list(dict.fromkeys([*OF_GAPS, *SAME_ARM, "base_arm"])))
    paired = pairs(trials)
    paired = paired[paired["status_sync"] == Status.COMPLETED].reset_index(drop=True)
    paired["series"] = with_variant(paired, paired["arm"].map(names.arms(trials)))
    means = gaps.rename(columns={"gap": "mean"})[[*SAME_ARM, *MEAN]]
    return paired.merge(means, on=SAME_ARM, how="left")


@remembered
def best_points(trials: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the best point of each panel, with PANEL and `series`.

    The best point has the lowest mean sync loss among the points that have a pair, or among all
    points if none has a pair. The subtitle names the point where there were several.
    """
    done = results(trials)
    done["has_pair"] = done["point"].isin(gaps.loc[gaps["pairs"] > 0, "point"])
    best_rows = [
        _best(group)
        for _, group in in_order(done, COMPARABLE).groupby(COMPARABLE, dropna=False, sort=False)
    ]
    if not best_rows:
        return done.assign(panel="", subtitle="", series="")
    points = pd.concat(best_rows)
    points["panel"] = points["optimizer"].map(names.optimizer)
    if points["num_parameters"].nunique() > 1:
        sizes = points["num_parameters"].map(names.parameters)
        points["panel"] += ", " + sizes + " parameters"
    settings = names.settings(trials)
    points["subtitle"] = [
        f"{settings[point]}: best sync of {num_points}" if num_points > 1 else ""
        for point, num_points in points[["point", "num_points"]].itertuples(index=False)
    ]
    points["series"] = with_variant(points, points["arm"].map(names.arms(trials)))
    return points


def _best(group: pd.DataFrame) -> pd.DataFrame:
    sync = group.loc[group["arm"] == "sync"].groupby("point")["final_val_loss"].mean()
    ranked = group.drop_duplicates("point").set_index("point")
    ranked = ranked.assign(loss_sync=sync).sort_values(
        ["has_pair", "loss_sync"], ascending=[False, True], kind="stable"
    )
    return group[group["point"] == ranked.index[0]].assign(num_points=len(ranked))


def along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the points with a result that differ in `keys` alone, and in keys that follow.

    `keys` are columns of `trials`. The points are the index; the columns are `optimizer`, PANEL
    and the keys. The subtitle names each key that follows, as a tuned learning rate does, unless
    it is in the group `part_of` of the config. The table is empty if one of the keys has the same
    value everywhere in a panel.
    """
    done = results(trials).drop_duplicates("point").set_index("point")
    none = done[:0].reindex(columns=["optimizer", *PANEL, *keys])
    if not {*keys} <= {*done}:
        return none
    panels = []
    for optimizer, points in varied(trials).items():
        points_there = points[points.index.isin(done.index)]
        points_there = points_there.assign(
            **{key: done.loc[points_there.index, key] for key in keys}
        )
        for subtitle, group in groups(points_there, keys, part_of):
            if all(group[key].nunique(dropna=False) > 1 for key in keys):
                words = {"panel": names.optimizer(optimizer), "subtitle": subtitle}
                panels.append(group[[*keys]].assign(optimizer=optimizer, **words))
    return pd.concat(panels) if panels else none


def results_along(trials: pd.DataFrame, keys: Sequence[str], part_of: str = "") -> pd.DataFrame:
    """Return the trials with a result at the points of `along`, with PANEL and `series`.

    The rows are sorted by panel and `keys`.
    """
    points = along(trials, keys, part_of)[[*PANEL, *keys]]
    points = in_order(points, [*PANEL, *keys])
    done = results(trials).drop(columns=[*keys], errors="ignore")
    rows = points.merge(done, left_index=True, right_on="point").reset_index(drop=True)
    return rows.assign(series=with_variant(rows, rows["arm"].map(names.arms(trials))))


def panels_of_keys(points: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points (the index) that differ in one number alone, with `subtitle`, `key` and
    `value`, for each number."""
    for key in distinct(points):
        if not is_numeric_dtype(points[key]) or is_bool_dtype(points[key]):
            continue
        for subtitle, group in groups(points, [key]):
            keyed_rows = group.dropna(subset=key)
            if keyed_rows[key].nunique() > 1:
                without = (
                    f"without {names.key(key)}: not shown" if len(keyed_rows) < len(group) else ""
                )
                values = keyed_rows[key].astype(float)
                title = in_lines([subtitle, without])
                yield pd.DataFrame({"subtitle": title, "key": key, "value": values})


def groups(
    points: pd.DataFrame, keys: Sequence[str], part_of: str = ""
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield subtitle and points of each panel: those that agree in all keys but `keys` and those
    that follow from them."""
    other_keys = [other_key for other_key in distinct(points, keys) if other_key not in keys]
    at_each = points.groupby([*keys], dropna=False)
    follow = [
        other_key
        for other_key in other_keys
        if (at_each[other_key].nunique(dropna=False) == 1).all()
    ]
    fixed = [other_key for other_key in other_keys if other_key not in follow]
    named_keys = [
        other_key for other_key in follow if not part_of or group_of(other_key) != part_of
    ]
    for _, group in points.groupby(fixed, dropna=False) if fixed else [((), points)]:
        followers = [f"with {names.key(other_key)} moving along" for other_key in named_keys]
        yield in_lines([names.in_words(group[fixed].iloc[0]), *followers]), group


def distinct(points: pd.DataFrame, first: Sequence[str] = ()) -> list[str]:
    """Return the keys that differ, and of keys that distinguish the same points the first one."""
    first_rows: dict[str, list[int]] = {}
    for key in [*first, *(key for key in map(str, points) if key not in first)]:
        # Two keys tell the same points apart if they number them alike, whatever their values.
        codes = points[key].factorize(use_na_sentinel=False)[0].tolist()
        if codes not in first_rows.values() and len(set(codes)) > 1:
            first_rows[key] = codes
    return [*first_rows]
