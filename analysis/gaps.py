"""Paired gaps: final validation loss of an arm minus that of sync, same point, same seed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics import mean_interval, share_removed

SHAPE = ["pipeline.num_stages", "pipeline.num_microbatches"]
KEYS = ["point", "seed"]


def gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a point and delayed arm, from the table that `analysis.load` gives.

    Columns: `point`, `optimizer`, `arm`; `n` pairs behind the mean; `gap` with `low` and `high`,
    its 95 % interval; `loss_sync` and `loss`, means over the same pairs; `diverged` of `pairs`:
    the arm diverged where sync did not (never averaged); `sync_diverged`: pairs left out for that;
    `removed` with `removed_low` and `removed_high`: the share of the gap of the same pipeline
    without a correction that is gone, where that gap's own interval excludes 0.

    Warns where a pair was made by different code; raises ValueError for different data.
    """
    paired = pairs(frame)
    if paired.empty:
        return pd.DataFrame(columns=["point", "optimizer", "arm", "n", "gap", "low", "high"])
    rows = [_summary(part) for _, part in paired.groupby(["point", "arm"], sort=False)]
    table = pd.DataFrame([{**row, **_removed(row, paired)} for row in rows])
    order = {arm: i for i, arm in enumerate(sorted(table["arm"], key=lambda arm: (len(arm), arm)))}
    table["order"] = table["arm"].map(order)
    return table.sort_values(["optimizer", "point", "order"], ignore_index=True).drop(
        columns="order"
    )


def pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """A row a delayed trial, with `loss_sync`, `sync_status` and `gap` of its sync trial."""
    ended = _newest(frame[frame["status"].isin(["completed", "diverged"])])
    sync = ended[ended["arm"] == "sync"]
    delayed = ended[ended["arm"] != "sync"]
    both = delayed.merge(sync, on=KEYS, suffixes=("", "_of_sync"))
    if both.empty:
        return both
    mismatch = sum(both[column] != both[f"{column}_of_sync"] for column in SHAPE)
    both = both.assign(mismatch=mismatch).sort_values(
        ["mismatch", *(f"{c}_of_sync" for c in SHAPE)]
    )
    both = both.drop_duplicates("trial_id")
    _refuse_mixtures(both)
    loss_sync = both["final_val_loss_of_sync"]
    return both.assign(
        loss_sync=loss_sync,
        sync_status=both["status_of_sync"],
        gap=both["final_val_loss"] - loss_sync,
    )


def missing(frame: pd.DataFrame) -> list[str]:
    """A line for every arm that other trials of the table have and a point lacks."""
    arms = sorted(set(frame["arm"]))
    lines = []
    for point, part in frame.groupby("point"):
        ended = part[part["status"].isin(["completed", "diverged"])]
        for arm in arms:
            lacking = set(part["seed"]) - set(ended.loc[ended["arm"] == arm, "seed"])
            if lacking:
                lines.append(
                    f"missing: {part['optimizer'].iloc[0]} (point {point}) has no finished {arm} "
                    f"for seed {', '.join(map(str, sorted(lacking)))}"
                )
    return lines


def _newest(frame: pd.DataFrame) -> pd.DataFrame:
    """One trial an arm, shape, point and seed: the one that finished last."""
    keys = ["arm", *SHAPE, *KEYS]
    if frame.duplicated(keys).any():
        warnings.warn("some trials were run by several versions: the newest count", stacklevel=3)
    return frame.sort_values("finished").drop_duplicates(keys, keep="last")


def _refuse_mixtures(both: pd.DataFrame) -> None:
    if (both["data_hash"] != both["data_hash_of_sync"]).any():
        raise ValueError("a pair was trained on different data (data_hash): no gap can be taken")
    for column in ("trainer_version", "git"):
        ours, theirs = both[column].fillna(""), both[f"{column}_of_sync"].fillna("")
        if (ours != theirs).any():
            warnings.warn(f"a pair was made by different code ({column})", stacklevel=3)


def _summary(part: pd.DataFrame) -> dict[str, Any]:
    fair = part[part["sync_status"] == "completed"]
    alive = fair[fair["status"] == "completed"]
    mean, low, high = mean_interval(alive["gap"].to_numpy(float), np.random.default_rng(0))
    first = part.iloc[0]
    return {
        "point": first["point"],
        "optimizer": first["optimizer"],
        "arm": first["arm"],
        "plain_arm": first["plain_arm"],
        "n": len(alive),
        "gap": mean,
        "low": low,
        "high": high,
        "loss_sync": alive["loss_sync"].mean(),
        "loss": alive["final_val_loss"].mean(),
        "diverged": len(fair) - len(alive),
        "pairs": len(fair),
        "sync_diverged": len(part) - len(fair),
    }


def _removed(row: dict[str, Any], paired: pd.DataFrame) -> dict[str, float]:
    """The share of the uncorrected arm's gap that this arm's correction removed."""
    names = ("removed", "removed_low", "removed_high")
    if row["arm"] == row["plain_arm"]:
        return dict.fromkeys(names, np.nan)
    of_point = paired[(paired["point"] == row["point"]) & paired["gap"].notna()]
    corrected, plain = (
        of_point[of_point["arm"] == arm].set_index("seed")["gap"]
        for arm in (row["arm"], row["plain_arm"])
    )
    both = pd.concat({"left": corrected, "whole": plain}, axis=1, join="inner")
    whole = both["whole"].to_numpy(float)
    if not mean_interval(whole, np.random.default_rng(0)).excludes_zero:
        return dict.fromkeys(names, np.nan)
    return dict(zip(names, share_removed(both["left"].to_numpy(float), whole), strict=True))
