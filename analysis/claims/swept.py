"""How the gap follows a swept number: momentum, stages, batch size."""

from __future__ import annotations

import math

import pandas as pd

from analysis.claims.claim import Claim, Estimate, Part
from analysis.claims.estimates import absent, below, ends, gap, mean, with_key, within
from analysis.pairs import pairs

SAME = 0.2
"""A gap has not changed if the interval of its change lies within this share of it."""
NEAR = 0.01  # nats per token


def _momentum(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    key = "optimizer.momentum"
    rows = with_key(trials, gaps[gaps["arm"] == "delay"], key)
    return [
        below(optimizer, gap(high, f"momentum {high[key]}"), gap(low, f"momentum {low[key]}"))
        for optimizer, low, high in ends(rows[rows["pairs"] > 0], key)
    ]


def _stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    found = pairs(trials)
    return [part for name, group in found.groupby("optimizer") for part in _of_depth(name, group)]


def _of_depth(optimizer: str, found: pd.DataFrame) -> list[Part]:
    """2BW does not change from the fewest stages to the most, PipeDream grows by that."""
    parts = []
    for arm, name in (("delay", "2BW"), ("pipedream", "PipeDream")):
        by_seed = found[found["arm"] == arm].pivot_table(
            index="seed", columns="num_stages", values="gap"
        )
        what = f"{optimizer} {name}"
        if by_seed.shape[1] < 2:
            parts.append(below(what, absent(f"{name} at two depths"), absent("")))
            continue
        few, many = by_seed.columns[[0, -1]]
        change = mean(by_seed[many] - by_seed[few], f"gap at P={many} minus at P={few}")
        share = SAME * abs(by_seed[few].mean())
        limits = (-share, share) if arm == "delay" else (0, math.inf)
        parts.append(within(what, change, *limits))
    return parts


def _best_over_grid(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    """Each arm at its own best point: the lowest mean over the same seeds, all of them completed."""
    muon = trials[trials["optimizer"] == "muon"]
    best = {arm: _best(muon[muon["arm"] == arm]) for arm in ("sync", "delay")}
    difference = (best["delay"] - best["sync"]).dropna()
    return [within("muon", mean(difference, "best delay minus best sync"), -math.inf, NEAR)]


def _best(trials: pd.DataFrame) -> pd.Series:
    """Losses by seed at the best of the points that all seeds completed."""
    losses = trials.pivot_table(index="seed", columns="point", values="final_val_loss")
    whole = losses.dropna(axis=1)
    return whole[whole.mean().idxmin()] if whole.shape[1] else pd.Series(dtype=float)


def _large_batches(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    """At each batch size the learning rate that is best on sync."""
    rows = with_key(trials, gaps[gaps["arm"] == "delay"], "batch_size")
    best = (
        rows[rows["pairs"] > 0]
        .sort_values("loss_sync")
        .drop_duplicates(["optimizer", "batch_size"])
    )
    return [
        below(optimizer, _at_size(small), _at_size(large))
        for optimizer, small, large in ends(best, "batch_size")
    ]


def _at_size(row: dict) -> Estimate:
    return gap(row, f"batch of {row['batch_size']}")


CLAIMS = (
    Claim(
        "momentum",
        "High momentum makes an optimizer robust",
        "figure 4 (135M)",
        ("momentum",),
        "For each optimizer: the gap at the largest momentum is smaller than at the smallest one, "
        "of those whose sync arm completed, and the two 95 % intervals do not overlap; contradicted "
        "where it is larger by that.",
        _momentum,
    ),
    Claim(
        "depth",
        "The gap of 2BW does not grow with the number of stages, that of PipeDream does",
        "figure 6 (135M)",
        ("stages",),
        "From the fewest stages to the most, the 95 % interval of the paired change of the gap lies "
        f"within {SAME:.0%} of the gap at the fewest (2BW), or above 0 (PipeDream); contradicted "
        "where it lies outside of that altogether.",
        _stages,
    ),
    Claim(
        "best_over_grid",
        "Muon's best delayed loss is within 0.01 of its best synchronous one",
        "figure 13 (135M: about 0.01, over batch size and learning rate)",
        ("batch_size",),
        "Each arm at its own best point of the grid, chosen by the mean over the same seeds; the 95 % "
        f"interval of the paired difference lies below {NEAR} nats a token; contradicted where it "
        "lies above.",
        _best_over_grid,
    ),
    Claim(
        "large_batches",
        "Large batches push the gap up",
        "figure 13 (135M: beyond 0.1)",
        ("batch_size",),
        "For each optimizer: at the largest batch size the gap is larger than at the smallest one, "
        "each at the learning rate that is best on sync, and the two 95 % intervals do not overlap; "
        "contradicted where it is smaller by that.",
        _large_batches,
    ),
)
