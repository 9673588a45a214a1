"""Which trials are compared: each trial of an arm with its synchronous partner, and what the arm
costs beside it in memory and speed (the paper's appendix F)."""

import warnings
from collections.abc import Collection

import numpy as np
import pandas as pd

from pipegap.analysis.table.points import ARM_GROUPS, BESIDE, group_of
from pipegap.analysis.table.rows import SOURCE
from pipegap.analysis.table.tasks import in_order
from pipegap.trainer.base.errors import BadInput
from pipegap.trainer.base.status import FINAL, Status

ENOUGH_UPDATES = 100
"""Shorter trials show that the code runs, not what a delay costs."""
VARIANT = ["num_stages", "num_microbatches"]
SAME_ARM = ["optimizer", "point", "arm", *VARIANT]
"""Columns that tell the rows of the table of gaps apart."""
SAME_TRIAL = [*SAME_ARM, "seed"]
SLACK = "pipeline.slack"
"""The key of an arm that changes no number."""
MADE_BY = ["trainer_version", "git"]
NEWEST = ["trainer_version", "finished_at", "trial_id"]
COMPARED = ("sync", "delay", "delay_ef")
"""The arms whose costs are shown by default."""
WHERE = ["runner", "device_name"]
SAME_COST = ["optimizer", "point", "seed", *VARIANT, *WHERE]
EPOCH = pd.Timestamp(0, tz="UTC")
MEASURED = {"peak_memory_bytes": "memory", "tokens_per_second": "speed"}
KEPT = [*SAME_TRIAL, "base_arm", "delay", "trial_id", "status", "final_val_loss", *MADE_BY]


def results(trials: pd.DataFrame) -> pd.DataFrame:
    """Trials that have a result (completed or diverged), each once, with `num_stages` and
    `num_microbatches`.

    Of several trials with one arm, point, seed, number of stages and of microbatches, the newest
    counts: the one with the highest trainer_version, then the latest. Warns if they were made by
    different trainers. Raises BadInput if they differ in what their arm is made of.
    """
    renamed = trials.rename(columns={f"pipeline.{name}": name for name in VARIANT})
    done = renamed[renamed["status"].isin(FINAL)]
    if done.empty:  # of a store without trials the table does not even have all columns
        return done.reindex(columns=list(dict.fromkeys([*done, *VARIANT])))
    # Of few columns: the table has many, and every move of a row moves them all.
    newest_first = done[[*SAME_TRIAL, *NEWEST, "git"]].sort_values(NEWEST, kind="stable")
    repeated = newest_first[newest_first.duplicated(SAME_TRIAL, keep=False)]
    _refuse_other_values(done.loc[repeated.index])
    makers = repeated[MADE_BY].astype(str).groupby([repeated[name] for name in SAME_TRIAL])
    num_mixed = int((makers.nunique() > 1).any(axis=1).sum()) if len(repeated) else 0
    if num_mixed:
        _warn(f"{num_mixed} trials were run by several versions of the code: the newest count")
    newest = newest_first.drop_duplicates(SAME_TRIAL, keep="last")
    newest = in_order(newest, SAME_TRIAL, done)
    return done.loc[newest.index]


def _refuse_other_values(repeated: pd.DataFrame) -> None:
    """Raises BadInput for trials that count as one, though pipeline or correction differ: sync's
    may, as they make no number.

    A value is missing in older trials, but the source of code of one's own in others alone.
    """
    delayed = repeated[repeated["arm"] != "sync"]
    keys = [key for key in map(str, delayed) if group_of(key) in ARM_GROUPS and key != SLACK]
    values = delayed[["schedule", "method", *(key for key in keys if "." in key)]]
    values = values.fillna({key: "" for key in keys if key.endswith(SOURCE)})
    counts = values.groupby([delayed[name] for name in SAME_TRIAL], dropna=False).nunique()
    for key in counts.columns[(counts > 1).any()]:
        trial = dict(zip(SAME_TRIAL, counts.index[counts[key] > 1][0], strict=True))
        values_found = ", ".join(map(str, sorted(values[key].dropna().unique())))
        allowed = f"trials of arm {trial['arm']}, seed {trial['seed']}, differ in it: move one away"
        raise BadInput(key, values_found, allowed)


def pairs(trials: pd.DataFrame) -> pd.DataFrame:
    """One row per trial of an arm other than sync: its own columns and its partner's (`…_sync`).

    The partner is the sync trial of the same point and seed. If there are several, the one with as
    many stages and microbatches is taken, else the one with the fewest stages, then microbatches:
    without a delay, they change only the order of a sum. Without a partner its columns are missing.
    `gap` is NaN unless both completed. Warns of pairs that were not made by the same trainer;
    raises BadInput (a ValueError) if trials of one setting and data.path saw different data.
    """
    _refuse_mixed_data(trials)
    done = results(trials)[KEPT]
    sync, arms = done[done["arm"] == "sync"], done[done["arm"] != "sync"]
    paired = arms.merge(
        sync.drop(columns=["arm", "base_arm", "delay"]),
        on=["optimizer", "point", "seed"],
        how="left",
        suffixes=("", "_sync"),
    )
    foreign = [paired[name] != paired[f"{name}_sync"] for name in VARIANT]
    paired["foreign"] = foreign[0] | foreign[1]
    order = ["foreign", *(f"{name}_sync" for name in VARIANT)]
    best = paired.sort_values(order, kind="stable").drop_duplicates(SAME_TRIAL)
    _warn_of_mixed(best[best["status_sync"].notna()])
    best["gap"] = best["final_val_loss"] - best["final_val_loss_sync"]
    return in_order(best.drop(columns="foreign"), SAME_TRIAL, done).reset_index(drop=True)


def overhead(trials: pd.DataFrame, arms: Collection[str] = COMPARED) -> pd.DataFrame:
    """One row per optimizer, runner, device and arm, with medians over its n completed trials.

    `arms`: those that have a row; sync must be among them.

    `memory` is in bytes, `speed` in tokens per second. Their ratios are to the sync trial of the
    same point, seed, stages, microbatches, runner and device. The speed of a trial counts only if
    no other trial ran at its time on a device of the same name: `speed n` do. The others are those
    of the store where a report has noted it (BESIDE), else those of the table.
    """
    done = results(trials)
    is_beside = trials[BESIDE] if BESIDE in trials else side_by_side(trials)
    beside_of_done = done["trial_id"].map(is_beside.set_axis(trials["trial_id"]))
    speed = done["tokens_per_second"].mask(beside_of_done.astype(bool))
    done = done.assign(tokens_per_second=speed)
    costs = done[(done["status"] == Status.COMPLETED) & done["arm"].isin([*arms])]
    costs = costs[[*SAME_COST, "arm", *MEASURED]].rename(columns=MEASURED)
    costs = costs.astype(dict.fromkeys(MEASURED.values(), "float64"))
    sync = costs[costs["arm"] == "sync"].drop(columns="arm")
    paired = costs.merge(sync, on=SAME_COST, how="left", suffixes=("", "_sync"))
    for name in MEASURED.values():
        paired[f"{name} ratio"] = paired[name] / paired[f"{name}_sync"]
    groups = paired.groupby(keys := ["optimizer", *WHERE, "arm"], dropna=False)
    columns_shown = [
        name for measured in MEASURED.values() for name in (measured, f"{measured} ratio")
    ]
    table = groups[columns_shown].median()
    table["n"] = groups.size()
    table["speed n"] = groups["speed"].count()
    return in_order(table.reset_index(), keys, done).reset_index(drop=True)


def side_by_side(trials: pd.DataFrame) -> pd.Series:
    """Whether another trial ran at the time of each, on a device of the same name.

    A trial is taken to have run for its wall seconds until it finished; of one that was interrupted
    this is not the very time. Where a time is not known, nothing is known of its neighbours: True.
    """
    ends = (trials["finished_at"] - EPOCH).dt.total_seconds()
    starts = ends - trials["wall_seconds"]
    is_beside = pd.Series(True, index=trials.index)
    has_start = starts.notna()
    for _, rows in trials[has_start].groupby("device_name", dropna=False):
        first, last = starts[rows.index].to_numpy(), ends[rows.index].to_numpy()
        order = np.argsort(first, kind="stable")
        latest_end = np.maximum.accumulate(last[order])
        overlaps_earlier = np.concatenate([[-np.inf], latest_end[:-1]]) > first[order]
        overlaps_later = np.concatenate([first[order][1:], [np.inf]]) < last[order]
        is_beside.loc[rows.index[order]] = overlaps_earlier | overlaps_later
    return is_beside


def _refuse_mixed_data(trials: pd.DataFrame) -> None:
    hashes_by_setting = (
        trials.groupby(["settings_key", "data.path"])["data_hash"].unique().reset_index()
    )
    for path, hashes in zip(
        hashes_by_setting["data.path"], hashes_by_setting["data_hash"], strict=True
    ):
        short_hashes = sorted(value[:8] for value in hashes if pd.notna(value))
        if len(short_hashes) > 1:
            allowed = (
                f"trials of one setting on data.path={path} saw different data and cannot be "
                "compared: move those on the old data out of the results folder"
            )
            raise BadInput("data_hash", ", ".join(short_hashes), allowed)


def _warn_of_mixed(paired: pd.DataFrame) -> None:
    for key in MADE_BY:
        values, partner = (
            paired[name].astype("string").fillna("unknown") for name in (key, f"{key}_sync")
        )
        mixed = values != partner
        if mixed.any():
            example = f"{values[mixed].iloc[0]} and {partner[mixed].iloc[0]}"
            _warn(f"{mixed.sum()} of {len(paired)} pairs mix {key} ({example}, for example)")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)
