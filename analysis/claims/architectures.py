"""Claims about mixtures of experts and hybrids, which the paper trains at 2B and 10B."""

import numpy as np
import pandas as pd

from pipegap.analysis.claims.above import near_best_of_arm, removes
from pipegap.analysis.claims.claim import Claim
from pipegap.analysis.claims.measure import (
    PAPER,
    Column,
    at_longest_horizon,
    measured,
    more,
    share_removed,
    with_key,
    words,
)
from pipegap.analysis.claims.rule import SAME, Comparison, Row
from pipegap.analysis.statistics.best import Grid, grids

RATE = "optimizer.lr"
PAIR = ("muon", "adamw")


def _muon_is_robust(trials: pd.DataFrame) -> list[Comparison]:
    """One per model that both optimizers train."""
    rows = with_key(trials, measured(trials), "model")
    pair = rows[(rows["arm"] == "delay") & rows["optimizer"].isin(PAIR)]
    return [
        more(str(model), *(Column(name, group[group["optimizer"] == name]) for name in PAIR))
        for model, group in pair.groupby("model")
        if group["optimizer"].nunique() == 2
    ]


def _feedback_helps(trials: pd.DataFrame) -> list[Comparison]:
    """One per model and optimizer."""
    rows = with_key(trials, measured(trials), "model")
    return [
        share_removed(words(model, optimizer), group, removes(0.0), optimizer)
        for (model, optimizer), group in rows.groupby(["model", "optimizer"])
        if "delay_ef" in {*group["arm"]}
    ]


def _same_rate(trials: pd.DataFrame) -> list[Comparison]:
    """One per optimizer and budget of tokens."""
    if RATE not in trials:
        return []
    rates = trials.drop_duplicates("point").set_index("point")[RATE]
    return [
        _at_rate_of_sync(words(optimizer, task), grid, rates, counts=optimizer in PAPER)
        for (optimizer, task, arm, *_), grid in grids(trials)
        if arm == "delay" and len(grid.points) > 1
    ]


def _at_rate_of_sync(name: str, grid: Grid, rates: pd.Series, *, counts: bool) -> Comparison:
    """Rows: what the delayed losses at each rate lie above sync's at its best one."""
    own = rates[grid.points].to_numpy(dtype=float)
    best = int(grid.sync.mean(axis=1).argmin())
    order = own.argsort(kind="stable")
    rows = [
        Row(f"rate {own[at]:g}", pd.Series(grid.arm[at] - grid.sync[best], index=grid.seeds))
        for at in order
    ]
    rule = near_best_of_arm([f"{rate:g}" for rate in own[order]], int(np.argmax(order == best)))
    return Comparison(name, rows, rule, counts)


CLAIMS = (
    Claim(
        "moe_horizon",
        "With Error Feedback a mixture of experts reaches the loss of sync at the longest horizon",
        "figure 5 (2B MoE)",
        ("moe_horizon",),
        "As for dense models: at each optimizer's longest horizon, where the gap of the plain "
        f"delay lies above 0: what Error Feedback leaves of it is less than {SAME:.0%}, by the "
        "95 % interval (Fieller) of the share; contradicted where that interval lies above; else "
        "not enough data.",
        at_longest_horizon,
    ),
    Claim(
        "moe_rate",
        "A delay does not ask a mixture of experts for another learning rate",
        "figure 16 (2B MoE)",
        ("moe_learning_rate",),
        "For each optimizer and number of tokens: at the learning rate of the lowest mean sync "
        "loss, where the gap lies above 0, the delayed loss exceeds that at each other rate by "
        f"less than {SAME:.0%} of this gap, by 95 % intervals of paired differences, and the rate "
        "of the lowest mean delayed loss is not at the edge of the grid; contradicted where such a "
        "difference surely exceeds that.",
        _same_rate,
    ),
    Claim(
        "families_muon",
        "A delay costs AdamW more than Muon, whatever the architecture",
        "tables 1 to 3 (dense and 10B MoE)",
        ("families",),
        "For each model: AdamW's gap is larger than Muon's, by the 95 % interval of their paired "
        "difference; contradicted where it lies below 0.",
        _muon_is_robust,
    ),
    Claim(
        "families_ef",
        "Error Feedback removes a part of the gap, whatever the architecture",
        "table 3 (10B MoE: 1.906, 1.911, with Error Feedback 1.906)",
        ("families",),
        "For each model and optimizer of which the gap of the plain delay lies above 0: the 95 % "
        "interval (Fieller) of the share that Error Feedback removes lies above 0; contradicted "
        "where it lies below.",
        _feedback_helps,
    ),
)
