"""What parts of a run without a delay do about it: a synchronous start, a cooldown."""

from __future__ import annotations

import math
from collections.abc import Hashable

import pandas as pd

from analysis.claims.claim import Claim, Outcome, Part
from analysis.claims.estimates import SAME, absent, below, gap, mean, with_key, within
from analysis.spikes import spikes

COOLED = "+cooldown("


def _spike(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    heights = spikes(trials)
    return [
        within(_arm(key), mean(group["height"], "height"), 0, math.inf)
        for key, group in heights.groupby(["optimizer", "setting", "arm"])
    ]


def _spike_by_decay(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    key = "optimizer.variance_decay"
    heights = with_key(trials, spikes(trials), key)
    return [
        _apart(str(optimizer), group.pivot_table(index="seed", columns=key, values="height"))
        for optimizer, group in heights.groupby("optimizer")
        if group[key].nunique() > 1
    ]


def _apart(optimizer: str, heights: pd.DataFrame) -> Part:
    """Which way round does not matter. `heights`: a row a seed, a column a β2, in order."""
    if heights.shape[1] < 2:
        return below(optimizer, absent("height at two β2"), absent(""))
    small, large = heights.columns[[0, -1]]
    two = (mean(heights[decay], f"height at β2={decay}") for decay in (small, large))
    part = below(optimizer, *two)
    if part.outcome != Outcome.UNDECIDED:
        return part._replace(outcome=Outcome.REPRODUCED)
    change = mean(heights[large] - heights[small], "change of the height")
    same = SAME * abs(heights[small].mean())
    equal = within(optimizer, change, -same, same).outcome == Outcome.REPRODUCED
    return part._replace(outcome=Outcome.CONTRADICTED, why="") if equal else part


def _cooldown(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    known = gaps.drop_duplicates(["point", "arm"]).set_index(["point", "arm"]).to_dict("index")
    parts = []
    for row in gaps[gaps["arm"].str.contains(COOLED, regex=False)].to_dict("records"):
        base = row["arm"].partition(COOLED)[0]
        plain = known.get((row["point"], base))
        without = gap(plain, base) if plain else absent(base)
        what = _arm((row["optimizer"], row["setting"], row["arm"]))
        parts.append(below(what, gap(row, row["arm"]), without))
    return parts


def _arm(key: tuple[Hashable, ...]) -> str:
    return " ".join(str(word) for word in key if word)


CLAIMS = (
    Claim(
        "spike",
        "After a synchronous start the loss spikes where the delay is switched on",
        "figure 3",
        ("spike",),
        "For each optimizer: the 95 % interval of the mean height (train loss, mean of 10 updates, "
        "after the switch minus before it) lies above 0; contradicted where it lies below.",
        _spike,
    ),
    Claim(
        "spike_by_decay",
        "The height of that spike depends on β2",
        "figure 20 (135M)",
        ("spike",),
        "For each optimizer: the 95 % intervals of the mean height at the smallest and the largest "
        "β2 do not overlap; contradicted where they do, and that of the paired change lies within "
        f"{SAME:.0%} of the height at the smallest.",
        _spike_by_decay,
    ),
    Claim(
        "cooldown",
        "A synchronous end of the run lowers the gap",
        "A.9 (135M; its result is open in the public summaries)",
        ("cooldown",),
        "For each optimizer and length: the 95 % interval of the gap lies below that of the same "
        "arm without it; contradicted where it lies above.",
        _cooldown,
    ),
)
