"""How the gap follows a swept number: momentum, stages, batch size."""

from __future__ import annotations

import math

import pandas as pd

from analysis.best import best
from analysis.claims.claim import Claim, Estimate, Outcome, Part
from analysis.claims.estimates import SAME, Row, absent, below, ends, gap, mean, with_key, within
from analysis.pairs import pairs

NEAR = 0.01  # nats per token
EF = ("delay", "delay_ef")
OF_GAP = ("gap", "low", "high", "n", "pairs", "diverged")


def _momentum(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    key = "optimizer.momentum"
    rows = with_key(trials, gaps[gaps["arm"] == "delay"], key)
    return [
        below(optimizer, gap(high, f"momentum {high[key]}"), gap(low, f"momentum {low[key]}"))
        for optimizer, low, high in ends(rows[rows["pairs"] > 0], key)
    ]


def _stages(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    key = "num_stages"
    late = gaps[(gaps["arm"] == "pipedream") & (gaps["pairs"] > 0)]
    grows = [
        below(f"{optimizer} PipeDream", gap(few, f"P={few[key]}"), gap(many, f"P={many[key]}"))
        for optimizer, few, many in ends(late, key)
    ]
    found = pairs(trials)
    groups = found[found["arm"] == "delay"].groupby("optimizer")
    return [*grows, *(_stays(f"{name} 2BW", group) for name, group in groups)]


def _stays(what: str, found: pd.DataFrame) -> Part:
    """That intervals overlap would show that seeds are few, not that nothing changes."""
    by_seed = found.pivot_table(index="seed", columns="num_stages", values="gap")
    if by_seed.shape[1] < 2:
        return below(what, absent("a second depth"), absent("2BW"))
    few, many = by_seed.columns[[0, -1]]
    change = mean(by_seed[many] - by_seed[few], f"gap at P={many} minus that at P={few}")
    same = SAME * abs(by_seed[few].mean())
    return within(what, change, -same, same)


def _horizon(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    tokens = trials.groupby("point")["tokens"].max()
    rows = gaps.assign(tokens=gaps["point"].map(tokens)).sort_values("tokens")
    last = {arm: rows[rows["arm"] == arm].drop_duplicates("optimizer", keep="last") for arm in EF}
    both = last["delay"].merge(last["delay_ef"], on=["optimizer", "point"], suffixes=("", "_ef"))
    return [_reaches_sync(row) for row in both.to_dict("records")]


def _reaches_sync(row: Row) -> Part:
    """Only where the plain delay costs something does it say anything that feedback does not."""
    feedback: Row = {name: row[f"{name}_ef"] for name in OF_GAP}
    plain, left = gap(row, "delay"), gap(feedback, "delay_ef")
    what, numbers = str(row["optimizer"]), (plain, left)
    flaw = plain.flaw or left.flaw or ("" if plain.low > 0 else "the plain delay may cost nothing")
    if flaw:
        return Part(what, Outcome.UNDECIDED, numbers, flaw)
    return Part(what, Outcome.REPRODUCED if left.low <= 0 else Outcome.CONTRADICTED, numbers)


def _best_over_grid(trials: pd.DataFrame, gaps: pd.DataFrame) -> list[Part]:
    found = best(trials)
    rows = found[(found["arm"] == "delay") & (found["optimizer"] == "muon")].to_dict("records")
    named = [(row, "best delay minus best sync") for row in rows]
    return [
        within(
            "muon", Estimate(name, row["gap"], row["low"], row["high"], row["n"]), -math.inf, NEAR
        )
        for row, name in named
    ]


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


def _at_size(row: Row) -> Estimate:
    return gap(row, f"batch of {row['batch_size']}")


CLAIMS = (
    Claim(
        "momentum",
        "High momentum makes an optimizer robust",
        "figure 4 (135M)",
        ("momentum",),
        "For each optimizer: the gap at the largest momentum is smaller than at the smallest one, "
        "of those whose sync arm completed, and the two 95 % intervals do not overlap; "
        "contradicted where it is larger by that.",
        _momentum,
    ),
    Claim(
        "depth",
        "The gap of 2BW does not grow with the number of stages, that of PipeDream does",
        "figure 6 (135M)",
        ("stages",),
        "For each optimizer: the 95 % interval of PipeDream's gap at the most stages lies above "
        "that at the fewest (contradicted where it lies below), and that of the paired change of "
        f"2BW's gap between these lies within {SAME:.0%} of it (contradicted where it lies "
        "outside).",
        _stages,
    ),
    Claim(
        "best_over_grid",
        "Muon's best delayed loss is within 0.01 of its best synchronous one",
        "figure 13 (135M: about 0.01, over batch size and learning rate)",
        ("batch_size",),
        "Each arm at its own best point of the grid, chosen for each seed on the other seeds: the "
        f"95 % interval of the difference lies below {NEAR} nats a token; contradicted where it "
        "lies above.",
        _best_over_grid,
    ),
    Claim(
        "large_batches",
        "Large batches push the gap up",
        "figure 13 (135M: beyond 0.1)",
        ("batch_size",),
        "For each optimizer: at the largest batch size the gap is larger than at the smallest one, "
        "each at the learning rate that is best on sync, and the two 95 % intervals do not "
        "overlap; contradicted where it is smaller by that.",
        _large_batches,
    ),
    Claim(
        "horizon",
        "With Error Feedback the loss reaches that of sync at the longest horizon",
        "table 3 (10B MoE: 1.906, 1.911, with Error Feedback 1.906)",
        ("horizon",),
        "For each optimizer at its longest horizon: the 95 % interval of the gap with Error "
        "Feedback holds 0 or lies below it, while that of the plain delay lies above 0; "
        "contradicted where both lie above.",
        _horizon,
    ),
)
