"""Claims about what a delay costs each optimizer, and how that depends on a swept number."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from pipegap.analysis.claims.measure import (
    BETWEEN,
    FRAGILE,
    PAPER,
    ROBUST,
    Above,
    Column,
    Contrast,
    at_longest_horizon,
    ends,
    measured,
    more,
    near_best_of_arm,
    of_points,
    removes,
    row,
    share_removed,
    with_key,
    words,
)
from pipegap.analysis.claims.rule import (
    SAME,
    Claim,
    ClaimRule,
    Codes,
    Comparison,
    Estimate,
    Means,
    Row,
    codes_of,
)
from pipegap.analysis.statistics.gaps import MEMORIES, TOLERANCE, Grid, grids
from pipegap.analysis.statistics.pairs import CONFIDENCE, Values, held_out_gaps, interval_of_best
from pipegap.analysis.table.points import in_order

# Claims about what a delay costs each optimizer, and what Error Feedback removes of that.

SHARED = ("shared_rate", "tuned_shared")
"""The sweeps of all optimizers at AdamW's learning rate and weight decay, as in the paper."""
ALL = ("optimizers", *SHARED)
"""These and the one with each at its own learning rate."""
EACH = ("main", *ALL)
PAIRED = (
    "by the 95 % interval of the difference of their gaps, paired by seed: it is so where that "
    "lies above 0, contradicted where it lies below, else undecided; an optimizer of several "
    "points is taken at the one where sync is best on the first third of the seeds, and compared "
    "on the others"
)
PAIR = ("muon", "adamw")
SHARE = "the 95 % interval (Fieller) of the share that it removes"


def _costs(trials: pd.DataFrame) -> list[Comparison]:
    rows = measured(trials)
    rule = Above((Contrast("the gap", (1.0,)),))
    return [
        Comparison(name, [row("delay", delay)], rule, optimizer in PAPER)
        for optimizer, name, delay in of_points(rows[rows["arm"] == "delay"])
    ]


def _order(trials: pd.DataFrame, pairs: Sequence[tuple[str, str]]) -> list[Comparison]:
    """One per pair (less, more) of optimizers, whether or not there are trials of both."""
    rows = measured(trials)
    delay = rows[rows["arm"] == "delay"]
    column = {name: Column(name, delay[delay["optimizer"] == name]) for name in PAPER}
    return [
        more(f"{less} less than {greater}", column[less], column[greater])
        for less, greater in pairs
        if len(delay)  # without any trial the claim as a whole says so, not each pair
    ]


def _shares(trials: pd.DataFrame, rule: ClaimRule) -> list[Comparison]:
    """One per optimizer and point with Error Feedback."""
    # Of all columns of a large store, each of its many groups would take a copy.
    rows = measured(trials)[["optimizer", "setting", "point", "arm", "seed", "value"]]
    plain = dict(iter(rows[rows["arm"] == "delay"].groupby("point")))
    compared = []
    for optimizer, name, gaps_left in of_points(rows[rows["arm"] == "delay_ef"]):
        of_plain = plain.get(gaps_left["point"].iloc[0], rows[:0])
        arms = row("delay", of_plain), row("delay_ef", gaps_left)
        compared.append(Comparison(name, arms, rule, optimizer in PAPER))
    return compared


COSTS = (
    Claim(
        "delay_costs",
        "A one-step delay costs loss",
        "tables 1, 2 (360M: +0.010 for Adan to +0.278 for AdamW)",
        EACH,
        "For each optimizer of the paper: the 95 % interval of its mean paired gap lies above 0; "
        "contradicted where it lies below.",
        _costs,
    ),
    Claim(
        "adamw_over_muon",
        "It costs AdamW more than Muon",
        "tables 1, 2 (360M: +0.278 and +0.012)",
        ("main", *SHARED),
        f"AdamW's gap is larger than Muon's {PAIRED}.",
        partial(_order, pairs=[PAIR]),
    ),
    Claim(
        "adamw_over_muon_own",
        "It costs AdamW more than Muon where each has its own learning rate and weight decay",
        "tables 1, 2 (360M: both at AdamW's)",
        ("tuned_own",),
        f"AdamW's gap is larger than Muon's {PAIRED}.",
        partial(_order, pairs=[PAIR]),
    ),
    Claim(
        "robust_three",
        "It costs Muon less than SOAP, and SOAP less than AdamW",
        "tables 1, 2 (360M: +0.012, +0.027, +0.278)",
        SHARED,
        f"Each of the two pairs, {PAIRED}.",
        partial(_order, pairs=[("muon", "soap"), ("soap", "adamw")]),
    ),
    Claim(
        "order",
        "It costs AdamW and MARS more than Muon, NorMuon, SOAP and Adan",
        "tables 1, 2, figure 2",
        (*ALL, "fragile"),
        f"Each of the eight pairs, {PAIRED}.",
        partial(_order, pairs=[*product(ROBUST, FRAGILE)]),
    ),
    Claim(
        "lion_between",
        "Lion lies in between",
        "tables 1, 2, figure 2",
        ALL,
        f"Lion's gap is larger than that of each of {', '.join(ROBUST)}, smaller than that of each "
        f"of {', '.join(FRAGILE)}, {PAIRED}.",
        partial(_order, pairs=[*product(ROBUST, [BETWEEN]), *product([BETWEEN], FRAGILE)]),
    ),
    Claim(
        "ef_helps",
        "Error Feedback removes a part of the gap",
        "tables 1, 2",
        EACH,
        f"For each optimizer of the paper with a gap: {SHARE} lies above 0; contradicted where it "
        "lies below.",
        partial(_shares, rule=removes(0.0)),
    ),
    Claim(
        "ef_most",
        "Error Feedback removes 50 to 90 % of the gap",
        "tables 1, 2 (360M: 58 % of Muon's, 67 % of SOAP's, 90 % of AdamW's)",
        EACH,
        f"For each optimizer of the paper with a gap: {SHARE} lies within 50 to 90 %; contradicted "
        "where it lies outside of that altogether.",
        partial(_shares, rule=removes(0.5, 0.9)),
    ),
)


# Claims about how the gap depends on a swept number (momentum, stages, batch size, horizon,
# learning rate), and on the architecture: mixtures of experts and hybrids, which the paper trains
# at 2B and 10B.

NEAR = 0.01  # nats per token


@dataclass(frozen=True)
class BestBelow(ClaimRule):
    """Reproduced where the best of an arm is surely less than `margin` above sync's best,
    contradicted where it surely is more; each best chosen for each seed on the others, and the
    interval encloses that of the same seeds. Rows: sync at each point, then the arm."""

    margin: float
    name: str
    num_sync: int
    """How many rows are sync's."""

    def decide(self, values: Values, confidence: float) -> Codes:
        """Whether the difference of the bests lies below the margin, or above it."""
        # As in every rule: 95 % for what reproduces, `confidence` for what contradicts.
        high, low = self._ends(values, CONFIDENCE)[1], self._ends(values, confidence)[0]
        return codes_of(high < self.margin, low > self.margin)

    def why(self, values: Values) -> str:
        """That the interval holds the margin."""
        return f"holds values on both sides of {self.margin:g}"

    def numbers(self, values: Values) -> list[Estimate]:
        """The difference of the bests."""
        low, high = self._ends(values, CONFIDENCE)
        gaps = held_out_gaps(*self._arms(values))
        return [Estimate(self.name, float(gaps.mean()), float(low), float(high), len(gaps))]

    def placebo(self, means: Means) -> Means:
        """The bests differ by the margin: without any gap the claim would be true."""
        sync, arm = self._arms(means[:, None])  # as of one seed
        is_arm = np.arange(len(means)) >= self.num_sync
        return means + (self.margin - (arm.min() - sync.min())) * is_arm

    def _ends(self, values: Values, confidence: float) -> tuple[Values, Values]:
        sync, arm = self._arms(values)
        same_seeds = _at_best(arm) - _at_best(sync)
        return interval_of_best(same_seeds, held_out_gaps(sync, arm), confidence)

    def _arms(self, values: Values) -> tuple[Values, Values]:
        return values[..., : self.num_sync, :], values[..., self.num_sync :, :]


def _at_best(losses: Values) -> Values:
    """The row of the lowest mean: [..., rows, seeds] → [..., seeds]."""
    best_index = losses.mean(axis=-1).argmin(axis=-1)[..., None, None]
    return np.take_along_axis(losses, best_index, axis=-2)[..., 0, :]


def _momentum(trials: pd.DataFrame) -> list[Comparison]:
    key = "optimizer.momentum"
    gaps = with_key(trials, measured(trials), key)
    delay = gaps[(gaps["arm"] == "delay") & gaps[key].notna()]
    # Of the longest run of a point: one that diverged has fewer updates.
    updates = delay["point"].map(trials.groupby("point")["num_updates"].max())
    long = delay[updates * (1 - delay[key]) >= MEMORIES - TOLERANCE]
    compared = []
    for optimizer, rows in delay.groupby("optimizer", sort=False):
        if rows[key].nunique() > 1:
            columns = ends(long[long["optimizer"] == optimizer], key)
            compared.append(_falls(str(optimizer), columns, rows))
    return compared


def _falls(optimizer: str, columns: list[Column], rows: pd.DataFrame) -> Comparison:
    """The gap at the largest momentum below that at the smallest; two of them must be allowed."""
    if len(columns) == 2:
        small, large = columns
        return more(optimizer, large, small)
    short = more(optimizer, *reversed(ends(rows, "optimizer.momentum")))
    reason = f"runs are shorter than {MEMORIES} / (1 - momentum) updates at all but one momentum"
    return Comparison(optimizer, short.rows, short.rule, short.counts, reason)


def _best_over_grid(trials: pd.DataFrame) -> list[Comparison]:
    return [
        _best_of(grid)
        for (optimizer, _, arm, *_), grid in grids(trials)
        if (optimizer, arm) == ("muon", "delay")
    ]


def _best_of(grid: Grid) -> Comparison:
    """A point at which the arm diverged is not its best."""
    completed = grid.arm[np.isfinite(grid.arm).all(axis=1)]
    # Every sync row stays: a point at which the arm diverged may be sync's best.
    rows = [
        Row("grid", pd.Series(losses, index=grid.seeds), is_shown=False)
        for losses in (*grid.sync, *completed)
    ]
    rule = BestBelow(NEAR, "best delay minus best sync", len(grid.sync))
    reason = "" if len(completed) and len(grid.sync) else "an arm completed at no point"
    return Comparison("muon", rows, rule, reason=reason)


def _grows(trials: pd.DataFrame, arm: str, key: str) -> list[Comparison]:
    """For each optimizer, that the gap of the arm is larger at the largest value of the key."""
    gaps = measured(trials)
    gaps = gaps if key in gaps else with_key(trials, gaps, key)  # stages are the arm's own column
    by_optimizer = gaps[gaps["arm"] == arm].groupby("optimizer", sort=False)
    columns = [(str(name), ends(rows, key)) for name, rows in by_optimizer]
    return [more(name, *two) for name, two in columns if len(two) == 2]


RATE = "optimizer.lr"
MODEL = ["model", "optimizer"]


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
        for (model, optimizer), group in in_order(rows, MODEL).groupby(MODEL, sort=False)
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
    own_rates = rates[grid.points].to_numpy(dtype=float)  # [points], in the order of the grid
    best = int(grid.sync.mean(axis=1).argmin())
    order = own_rates.argsort(kind="stable")
    rows = [
        Row(f"rate {own_rates[at]:g}", pd.Series(grid.arm[at] - grid.sync[best], index=grid.seeds))
        for at in order
    ]
    rule = near_best_of_arm(  # the place of sync's best rate among the ascending ones
        [f"{rate:g}" for rate in own_rates[order]], int(np.argmax(order == best))
    )
    return Comparison(name, rows, rule, counts)


SWEPT = (
    Claim(
        "momentum",
        "High momentum makes an optimizer robust",
        "figure 4 (135M)",
        ("momentum", "momentum_ends"),
        "For each optimizer: the gap at the largest momentum is smaller than at the smallest one, "
        "of those whose sync arm completed and whose runs have at least 100 / (1 - momentum) "
        "updates: the 95 % interval of the paired difference lies above 0; contradicted where it "
        "lies below.",
        _momentum,
    ),
    Claim(
        "depth",
        "The gap of original PipeDream grows with the number of stages",
        "figure 6 (135M)",
        ("stages",),
        "For each optimizer: the 95 % interval of the paired difference of PipeDream's gaps at the "
        "most and the fewest stages lies above 0; contradicted where it lies below. That the gap "
        "of 2BW does not grow is no finding: its delay is one update at every depth, so its trials "
        "of all depths compute the same by construction, and only PipeDream is judged.",
        partial(_grows, arm="pipedream", key="num_stages"),
    ),
    Claim(
        "best_over_grid",
        "Muon's best delayed loss is within 0.01 of its best synchronous one",
        "figure 13 (135M: about 0.01, over batch size and learning rate)",
        ("batch_size",),
        "Each arm at its own best point of the grid, chosen for each seed on the other seeds: the "
        f"95 % interval of the difference lies below {NEAR} nats per token; contradicted where it "
        "lies above.",
        _best_over_grid,
    ),
    Claim(
        "large_batches",
        "Large batches push the gap up",
        "figure 13 (135M: beyond 0.1)",
        ("batch_size",),
        "For each optimizer: at the largest batch size the gap is larger than at the smallest one, "
        "each at the learning rate that is best for sync on the first third of the seeds: the 95 % "
        "interval of the paired difference on the other seeds lies above 0; contradicted where it "
        "lies below.",
        partial(_grows, arm="delay", key="batch_size"),
    ),
    Claim(
        "horizon",
        "With Error Feedback the loss reaches that of sync at the longest horizon",
        "table 3 (10B MoE: 1.906, 1.911, with Error Feedback 1.906)",
        ("horizon", "horizon_end"),
        "For each optimizer at its longest horizon, where the gap of the plain delay lies above 0: "
        f"what Error Feedback leaves of it is less than {SAME:.0%}, by the 95 % interval (Fieller) "
        "of the share; contradicted where that interval lies above; else not enough data.",
        at_longest_horizon,
    ),
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


CLAIMS = (*COSTS, *SWEPT)
