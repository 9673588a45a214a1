"""The best settings of two arms, chosen at seeds of choice and compared at the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.statistics.intervals import mean_intervals
from analysis.statistics.pairs import VARIANT, pairs

ROW = ["optimizer", "task", "family", *VARIANT]
ARM = ["point", "arm"]


def chosen(
    df: pd.DataFrame, choice: Collection[int], tasks: dict[str, str], words: dict[str, str]
) -> list[dict[str, Any]]:
    """The rows of `best` for arms whose settings the seeds `choice` choose: see there.

    An arm stands for all of its coefficients, of which each may be a setting. `tasks` and `words`:
    of each point.
    """
    found = pairs(df)
    found = found[found["status_sync"].notna()]
    found = found.assign(
        task=found["point"].map(tasks),
        family=found["trial_id"].map(df.set_index("trial_id")["family"]),
    )
    return [
        {**dict(zip([*ROW[:2], "arm", *VARIANT], key, strict=True)), **_row(group, choice, words)}
        for key, group in found.groupby(ROW)
        if group["seed"].isin(choice).any()
    ]


class _Settings(NamedTuple):
    """Mean losses at the seeds of choice, infinite if one diverged: of the arm by ARM, of sync by
    point; and how many settings are left out."""

    arm: pd.Series
    sync: pd.Series
    sync_diverged: int
    incomplete: int


def _row(group: pd.DataFrame, choice: Collection[int], words: dict[str, str]) -> dict[str, Any]:
    known = _settings(group[group["seed"].isin(choice)])
    counts = {
        "n": 0,
        "pairs": 0,
        "num_points": len(known.arm),
        "arm_diverged": int(np.isinf(known.arm).sum()),
        "sync_diverged": known.sync_diverged,
        "incomplete": known.incomplete,
    }
    if known.arm.empty or np.isinf(known.arm.min()):
        return counts
    at, arm = _lowest(known.arm)
    at_sync = str(known.sync.idxmin())
    rest = group[~group["seed"].isin(choice)]
    own = rest[(rest["point"] == at) & (rest["arm"] == arm)].set_index("seed")
    base = rest[rest["point"] == at_sync].drop_duplicates("seed").set_index("seed")
    seeds = own.index.intersection(base.index[base["final_val_loss_sync"].notna()])
    sync = base.loc[seeds, "final_val_loss_sync"]
    gaps = (own.loc[seeds, "final_val_loss"] - sync).dropna()
    low, high = mean_intervals(gaps.to_numpy(dtype=float))
    return {
        **counts,
        "n": len(gaps),
        "pairs": len(seeds),
        "gap": gaps.mean(),
        "low": float(low),
        "high": float(high),
        "loss_sync": sync[gaps.index].mean(),
        "loss": own.loc[gaps.index, "final_val_loss"].mean(),
        "point_sync": at_sync,
        "point": at,
        "setting_sync": words[at_sync],
        "setting": _in_words(words[at], arm, group["family"].iloc[0]),
    }


def _settings(tried: pd.DataFrame) -> _Settings:
    """Of those settings that have every seed of choice, where sync completed."""
    seeds = tried.groupby(ARM)["seed"].nunique()
    whole = seeds[seeds == tried["seed"].nunique()].index
    losses = tried.assign(
        arm_loss=tried["final_val_loss"].fillna(np.inf),
        sync_loss=tried["final_val_loss_sync"].fillna(np.inf),
    ).groupby(ARM)[["arm_loss", "sync_loss"]]
    means = losses.mean().loc[whole].sort_index()
    fair = means[np.isfinite(means["sync_loss"])]
    sync = fair["sync_loss"].droplevel("arm")
    return _Settings(
        fair["arm_loss"],
        sync[~sync.index.duplicated()],
        len(means) - len(fair),
        len(seeds) - len(whole),
    )


def _lowest(losses: pd.Series) -> tuple[str, str]:
    """The point and the arm."""
    point, arm = losses.index[int(losses.to_numpy().argmin())]
    return str(point), str(arm)


def _in_words(setting: str, arm: str, family: str) -> str:
    """The setting, with the arm's name where that says a coefficient."""
    return ", ".join(word for word in (setting, "" if arm == family else arm) if word)
