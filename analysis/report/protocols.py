"""The gaps of each optimizer at AdamW's learning rate and decay beside those at its own."""

from __future__ import annotations

import pandas as pd

TUNED = ("optimizer.lr", "optimizer.weight_decay")
LEADER = "adamw"
SHARED, OWN = "AdamW's", "its own"
OF_POINT = ("optimizer", "rates", *TUNED, "loss_sync")
OF_DELAY = ("gap", "gap_low", "gap_high", "n", "diverged")
OF_FEEDBACK = ("removed", "removed_low", "removed_high", "regime")


def protocols(trials: pd.DataFrame, gaps: pd.DataFrame, scale: str) -> pd.DataFrame:
    """One row per point with a pair of the plain delay, optimizer by optimizer.

    `rates`: whether learning rate and weight decay are those of a point of AdamW. Empty where no
    optimizer has a point of each kind, since there is nothing to compare.
    """
    values = trials.reindex(columns=["point", *TUNED]).drop_duplicates("point")
    shown = gaps[gaps["pairs"] > 0].merge(values, on="point")
    pairs = [*zip(*(shown[key] for key in TUNED), strict=True)]
    of_leader = {
        pair for pair, name in zip(pairs, shown["optimizer"], strict=True) if name == LEADER
    }
    shown["rates"] = [SHARED if pair in of_leader else OWN for pair in pairs]
    plain, fed = (shown[shown["arm"] == arm] for arm in ("delay", "delay_ef"))
    plain = plain.rename(columns={"low": "gap_low", "high": "gap_high"})
    if not (plain.groupby("optimizer")["rates"].nunique() > 1).any():
        return plain[:0]
    left = fed.set_index("point")[["gap", "low", "high", *OF_FEEDBACK[:3]]]
    left = left.rename(columns={"gap": "EF gap", "low": "EF gap_low", "high": "EF gap_high"})
    table = plain.drop(columns=[*OF_FEEDBACK[:3]]).join(left, on="point")
    order = ["optimizer", "rates", *TUNED]
    columns = [*OF_POINT, *OF_DELAY, "EF gap", "EF gap_low", "EF gap_high", *OF_FEEDBACK]
    return table.sort_values(order, kind="stable", ignore_index=True)[columns]
